"""Export a git tree to a folder.

The files have the bytes of the blobs, whatever git's attributes, the umask and the locale are.
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

_MAX_LINKS = 40  # as in Linux
_REMEDY = "use another commit of the source, without this file or link"


def exported_entries(entries: Iterable[Entry], absent: Iterable[str]) -> list[Entry]:
    """Return `entries` without the paths that are never exported, sorted by path."""
    left_out = frozenset(absent)
    return sorted(
        (entry for entry in entries if entry.path not in left_out), key=lambda entry: entry.path
    )


def write_tree(reader: Reader, entries: Iterable[Entry], into: Path) -> None:
    """Write `entries` below the folder `into`.

    Files get the mode 0644 or 0755, folders 0755.

    Raises:
        UserError: Before anything is written: a symbolic link leads out of the tree, or a path is
            below a link or a file. Later: the disk is full or refuses a file.
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
                permissions = 0o755 if entry.mode == EXECUTABLE else 0o644
                _write_file(into / entry.path, reader.read(entry.sha, "blob"), permissions)
    except OSError as error:
        raise UserError(
            f"cannot be written ({error.strerror})",
            error.filename or str(into),
            "free space there, or choose another folder",
            kind=FAILED,
        ) from error


def check_layout(entries: Iterable[Entry], links: Mapping[str, str], where: str) -> set[str]:
    """Check that no entries collide and no link leads out of the tree.

    Args:
        entries: The files and links of the tree.
        links: The target of each link, by the path of the link.
        where: The repository, for errors.

    Returns:
        The folders that the entries need.

    Raises:
        UserError: two entries collide, or a link leads out of the tree.
    """
    paths: set[str] = set()
    folders: set[str] = set()
    for entry in entries:
        parts = check_path(entry.path, where).split("/")
        if entry.path in paths:
            raise UserError(
                f"holds {entry.path!r} twice", where, _REMEDY, kind=CONFLICT, value=entry.path
            )
        paths.add(entry.path)
        folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    for path in sorted(paths & folders):
        raise UserError(
            f"holds {path!r} as a file or link and as a folder",
            where,
            _REMEDY,
            kind=CONFLICT,
            value=path,
        )
    for path in links:
        _check_link(path, links, where)
    return folders


def _check_link(path: str, links: Mapping[str, str], where: str) -> None:
    """Resolve a link and every link that its path goes through, as a file system would.

    Raises:
        UserError: The target is empty or absolute, leads out of the tree, or is a loop of links.
    """
    target = links[path]
    error = UserError(
        f"holds the link {path!r} to {target!r}, which is not a valid link within the tree",
        where,
        _REMEDY,
    )
    if not target or target.startswith("/") or "\\" in target or "\0" in target:
        raise error
    folder = path.split("/")[:-1]
    remaining = target.split("/")[::-1]  # a stack: the next part is the last item
    followed = 0
    while remaining:
        part = remaining.pop()
        if part == "..":
            if not folder:
                raise error
            folder.pop()
        elif part not in ("", "."):
            folder.append(check_name(part, where))
            next_target = links.get("/".join(folder))
            if next_target is not None:
                followed += 1
                if followed > _MAX_LINKS or next_target.startswith("/"):
                    raise error
                folder.pop()
                remaining += reversed(next_target.split("/"))


def _read_link_target(reader: Reader, entry: Entry) -> str:
    """Return the target of a symbolic link, which must be UTF-8."""
    raw = reader.read(entry.sha, "blob")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"holds the link {entry.path!r}, whose target is not UTF-8", reader.where, _REMEDY
        ) from error


def _write_file(path: Path, data: bytes, mode: int) -> None:
    """Create a file with exactly this mode; never follow a link or replace a file."""
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
    )
    with open(descriptor, "wb") as out:
        out.write(data)
        os.fchmod(descriptor, mode)
