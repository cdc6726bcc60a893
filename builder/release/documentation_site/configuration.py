"""Read the settings of the site in zensical.toml: its navigation and its repository."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

FILE = "zensical.toml"


@dataclass(frozen=True)
class Configuration:
    """The text of zensical.toml, and what the builder reads in it.

    Attributes:
        text: The whole file.
        navigation: The paths of the pages below docs/, in the order of the navigation.
        repository: The address of the repository on the web.
    """

    text: str
    navigation: tuple[str, ...]
    repository: str


def read_configuration(root: Path, repository: str = "") -> Configuration:
    """Read zensical.toml of a checkout.

    Args:
        root: The checkout.
        repository: The address of the repository, in place of the one in the file.

    Raises:
        UserError: the file is missing or not valid.
    """
    file = root / FILE
    try:
        text = file.read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        navigation = tuple(_list_paths(project["nav"]))
        file_repository = str(project["extra"]["social"][0]["link"])
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})",
            str(file),
            f"restore it: git checkout -- {FILE}",
            kind=MISSING,
        ) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"not a valid configuration of the site: {error!r}",
            str(file),
            "give it `nav`, and the address of the repository as the first of `extra.social`",
            kind=INVALID,
        ) from error
    chosen = (repository or file_repository).rstrip("/")
    return Configuration(text.replace(file_repository, chosen), navigation, chosen)


def parse_repository(text: str) -> str:
    """Return the address of a repository on the web; raise UserError if it is not one."""
    if not re.fullmatch(r"https?://[\w.:-]+(/[\w.~-]+)+/?", text):
        raise UserError(
            f"{text[:60]!r} is not a valid address of a repository",
            do="give one such as https://HOST/OWNER/REPOSITORY",
            kind=INVALID,
            value=text[:60],
        )
    return text


def find_problems(navigation: Collection[str], pages: Collection[str]) -> list[str]:
    """Return what is wrong with a navigation: it must name each page once, and nothing else."""
    return [
        *(f"docs/{page}: not in the navigation" for page in pages if page not in navigation),
        *(f"{FILE}: `nav` names {page}: no such page" for page in navigation if page not in pages),
        *(
            f"{FILE}: `nav` names {page} more than once"
            for page in sorted(set(navigation))
            if list(navigation).count(page) > 1
        ),
    ]


def _list_paths(entry: Any) -> Iterator[str]:
    """Yield the paths of an entry: a path, a list of entries, or a table of titles to entries."""
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry:
        yield from _list_paths(part)
