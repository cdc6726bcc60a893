"""From a tree to a folder: the blobs' bytes as they are, whatever git's attributes, the umask or
the locale say.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.upstream.git_objects import EXECUTABLE, LINK, Entry
from builder.upstream.path_rules import check_name, check_path
from rosetta.core.errors import CONFLICT, FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.upstream.git_objects import Reader

_MOST_LINKS = 40  # as Linux follows
_DO = "take no source that holds it"


def exported_entries(entries: Iterable[Entry], absent: Iterable[str]) -> list[Entry]:
    """`entries` without the paths that are never exported, sorted by path."""
    left_out = frozenset(absent)
    return sorted(
        (entry for entry in entries if entry.path not in left_out), key=lambda entry: entry.path
    )


def write_tree(reader: Reader, entries: Iterable[Entry], into: Path) -> None:
    """Write `entries` below the folder `into`: files 0644 or 0755, folders 0755, symbolic links
    only if they stay inside.

    Raises UserError before anything is written if a link climbs out or a path lies below a link or
    a file.
    """
    wanted = sorted(entries, key=lambda entry: entry.path)
    links = {entry.path: _read_link_target(reader, entry) for entry in wanted if entry.mode == LINK}
    folders = check_layout(wanted, links, reader.where)
    try:
        into.mkdir(parents=True, exist_ok=True)
        os.chmod(into, 0o755)  # noqa: S103 - upstream's code is readable to whoever runs it
        for folder in sorted(folders):
            os.mkdir(into / folder)
            os.chmod(into / folder, 0o755)  # noqa: S103
        for entry in wanted:
            if entry.mode == LINK:
                os.symlink(links[entry.path], into / entry.path)
            else:
                _write_file(
                    into / entry.path,
                    reader.read(entry.sha, "blob"),
                    0o755 if entry.mode == EXECUTABLE else 0o644,
                )
    except OSError as error:
        raise UserError(
            f"cannot be written ({error.strerror})",
            error.filename or str(into),
            "free space there, or choose another folder",
            kind=FAILED,
        ) from error


def check_layout(entries: Iterable[Entry], links: Mapping[str, str], where: str) -> set[str]:
    """Return the folders that `entries` need; a UserError where two entries collide or one of
    `links` (path: target) leads out.
    """
    paths: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        parts = check_path(entry.path, where).split("/")
        if entry.path in paths:
            raise UserError(
                f"holds {entry.path!r} twice", where, _DO, kind=CONFLICT, value=entry.path
            )
        paths.add(entry.path)
        folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    for path in sorted(paths & folders):
        raise UserError(
            f"holds {path!r} as a file or link and as a folder",
            where,
            _DO,
            kind=CONFLICT,
            value=path,
        )
    for path in links:
        _check_link(path, links, where)
    return folders


def _check_link(path: str, links: Mapping[str, str], where: str) -> None:
    """Follow a link as a file system would, every link on the way included: what climbs out
    anywhere is refused.
    """
    target = links[path]
    refused = UserError(
        f"holds the link {path!r} to {target!r}, which leads out of the tree", where, _DO
    )
    here = path.split("/")[:-1]
    todo = list(reversed(target.split("/")))
    if not target or target.startswith("/") or "\\" in target or "\0" in target:
        raise refused
    followed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if not here:
                raise refused
            here.pop()
        elif part not in ("", "."):
            here.append(check_name(part, where))
            further = links.get("/".join(here))
            if further is not None:
                followed += 1
                if followed > _MOST_LINKS or further.startswith("/"):
                    raise refused
                here.pop()
                todo += reversed(further.split("/"))


def _read_link_target(reader: Reader, entry: Entry) -> str:
    raw = reader.read(entry.sha, "blob")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"holds the link {entry.path!r} to something that is not UTF-8", reader.where, _DO
        ) from error


def _write_file(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    with open(descriptor, "wb") as out:
        out.write(data)
        os.fchmod(descriptor, mode)
