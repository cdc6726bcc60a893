"""Build the site in a temporary folder, check it, and move it to its place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.subprocesses import output_end
from builder.packages import environment_assembly, python_interpreter, tool_environment
from builder.release.documentation_site import built_pages, configuration, source_pages
from rosetta.core.errors import FAILED, INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.command_context import Context

LOCK = "locks/docs.txt"
# A file of every site. A folder with this file may be replaced by a newer site.
MARK = ".rosetta-site"
_MAX_SHOWN = 5  # problems that an error shows beside the first one
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WARNING = re.compile(
    r"^Warning: (?P<what>.+)\n.*\[ (?P<page>\S+?):(?P<line>\d+):\d+ \]", re.MULTILINE
)


@dataclass(frozen=True)
class Site:
    """A site that was built.

    Attributes:
        folder: The folder of the site.
        pages: The number of its pages.
        size: The size of its files in bytes.
    """

    folder: Path
    pages: int
    size: int


def build(context: Context, folder: Path, repository: str) -> Site:
    """Build the site of a checkout.

    Args:
        context: Names the checkout and the cache, which keeps the tool that builds the site.
        folder: The folder for the site. It is replaced whole, or not at all.
        repository: The address of the repository on the web; "" for that of zensical.toml.

    Raises:
        UserError: a page, a link or the navigation is not valid, or the folder has other files.
    """
    folder = folder.absolute()
    environment_assembly.refuse_unmarked(folder, MARK)
    if (context.root / source_pages.FOLDER) in (folder, *folder.parents):
        raise UserError(
            "is inside the folder of the pages",
            f"--site {folder}",
            "give another folder, such as build/site",
            kind=INVALID,
        )
    settings = configuration.read_configuration(context.root, repository)
    pages = source_pages.find_pages(context.root)
    with tempfile.TemporaryDirectory(prefix="rosetta-site-") as scratch:
        work = Path(scratch).resolve()
        staging = source_pages.Staging(context.root, settings.repository, pages)
        staging.write(work / source_pages.FOLDER)
        (work / configuration.FILE).write_text(settings.text, encoding="utf-8")
        _raise_if_any(configuration.find_problems(settings.navigation, pages) + staging.problems)
        with log.stage(f"build the site of {len(pages)} pages"):
            _run_tool(context, work, pages)
        built = work / "site"
        _raise_if_any(built_pages.find_problems(built, pages))
        (built / MARK).touch()
        with (
            environment_assembly.lock_output(folder) as place,
            environment_assembly.replace_path(place) as fresh,
        ):
            shutil.copytree(built, fresh)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Site(folder, len(pages), size)


def _run_tool(context: Context, work: Path, pages: dict[str, str]) -> None:
    """Run the strict build in the folder with the staged pages."""
    environment = tool_environment.ensure_environment(
        context.cache,
        python_interpreter.builder_interpreter(),
        context.root / LOCK,
        where="the tool that builds the site",
        offline=context.offline,
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(environment / "bin/python"), "-IB", "-m", "zensical", "build", "--strict"],
        cwd=work,
        env=env,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if not done.returncode:
        return
    _raise_if_any(
        [
            f"{pages.get(warning['page'], warning['page'])}:{warning['line']}: {warning['what']}"
            for warning in _WARNING.finditer(_COLOUR.sub("", done.stderr))
        ]
    )
    last = (done.stderr.strip() or "it printed no message").splitlines()[-1]
    raise UserError(
        f"Zensical failed: {output_end(last)}",
        configuration.FILE,
        "correct what the message names, then run again",
        kind=FAILED,
    )


def _raise_if_any(problems: Sequence[str]) -> None:
    """Raise UserError with the first problems, if there are any. Each begins with its place."""
    if not problems:
        return
    first, *others = dict.fromkeys(problems)
    where, _, what = first.partition(": ")
    more = len(others) - _MAX_SHOWN
    shown = [what, *others[:_MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    raise UserError(
        "; ".join(shown),
        where,
        "correct the pages, then run again: nothing was written",
        kind=INVALID,
        value=1 + len(others),
    )
