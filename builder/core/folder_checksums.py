"""What a folder of the builder's cache held when it was made: modes, sizes, times and the sha256 of
every file.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT = 2  # 1 was one hash over names, sizes and times
# A folder: [mode]; a link: [its target]; a file: [mode, size, time in ns], and [.., sha256] where
# it was read.
Facts = list[int | str]


def record(folder: Path) -> dict[str, Facts]:
    """Return the facts of all that lies below `folder` by path, files with their sha256; "" is the
    folder itself.
    """
    found = _scan(folder)
    files = [path for path, facts in found.items() if len(facts) == 3]
    for path, digest in zip(files, _hash(folder, files), strict=True):
        found[path].append(digest)
    return found


def differences(folder: Path, known: dict[str, Facts], *, contents: bool) -> list[str]:
    """Return what is not as `known` says, a line for each path, at most a few lines where only
    contents differ.

    Raises nothing for a folder that is not there: that is a difference, too.
    """
    try:
        found = _scan(folder)
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    lines = [f"{path}: is missing" for path in sorted(known.keys() - found.keys())]
    lines += [
        f"{path}: was not there when it was made" for path in sorted(found.keys() - known.keys())
    ]
    lines += [
        f"{path or '.'}: {_name(found[path], known[path])}"
        for path in sorted(found.keys() & known.keys())
        if found[path] != known[path][:3]
    ]
    if lines or not contents:
        return lines
    files = [path for path, facts in known.items() if len(facts) == 4]
    try:
        return [
            f"{path}: its content is not what it was"
            for path, digest in zip(files, _hash(folder, files), strict=True)
            if digest != known[path][3]
        ]
    except OSError as error:
        return [f"{error.filename}: cannot be read ({error.strerror})"]


def _name(now: Facts, before: Facts) -> str:
    """Say by what two records of one path differ."""
    if len(now) != len(before[:3]) or isinstance(now[0], str) or isinstance(before[0], str):
        return "is another kind of file, or leads elsewhere"
    if now[0] != before[0]:
        return f"has mode {now[0]:04o}, not {before[0]:04o}"
    return f"has {now[1]} bytes, not {before[1]}" if now[1] != before[1] else "was written later"


def render(known: dict[str, Facts]) -> str:
    """Return the text that `read` reads."""
    return json.dumps({"format": FORMAT, "files": known}, separators=(",", ":"))


def read(file: Path) -> dict[str, Facts] | None:
    """Return the record in a file; None where there is none, or one of another format."""
    try:
        document = json.loads(file.read_text(encoding="ascii"))
        known = document["files"] if document["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(known, dict) or not all(
        isinstance(facts, list) and facts for facts in known.values()
    ):
        return None
    return known


def _scan(folder: Path) -> dict[str, Facts]:
    state = os.lstat(folder)
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(20, "is not a folder", str(folder))
    return dict(_walk(str(folder), "")) | {"": [stat.S_IMODE(state.st_mode)]}


def _walk(folder: str, inside: str) -> Iterator[tuple[str, Facts]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            state = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                yield path, [os.readlink(entry.path)]
            elif entry.is_dir():
                yield path, [stat.S_IMODE(state.st_mode)]
                yield from _walk(entry.path, path)
            else:
                yield path, [stat.S_IMODE(state.st_mode), state.st_size, state.st_mtime_ns]


def _hash(folder: Path, files: list[str]) -> Iterator[str]:
    """Yield the sha256 of each file."""

    def read_one(path: str) -> str:
        with open(f"{folder}/{path}", "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()

    if len(files) < 50:  # a pool costs more than it saves
        yield from map(read_one, files)
    else:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            yield from pool.map(read_one, files)
