"""Records of a folder's content: mode, size, time and sha256 of every file in it."""

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

# Files that one thread hashes at a time. To hand over a small file costs more than to hash it.
_GROUP_SIZE = 64
FORMAT = 2  # 1 was one hash over names, sizes and times
# A folder has [mode], a link [target], a file [mode, size, time in ns] and, if the file was read,
# its sha256 as a fourth item.
Facts = list[int | str]


def record_folder(folder: Path) -> dict[str, Facts]:
    """Return the facts of everything below a folder by path, files with their sha256.

    The path "" is the folder itself.
    """
    facts_by_path = _scan_folder(folder)
    files = [path for path, facts in facts_by_path.items() if len(facts) == 3]
    for path, digest in zip(files, _hash_files(folder, files), strict=True):
        facts_by_path[path].append(digest)
    return facts_by_path


def list_differences(folder: Path, recorded: dict[str, Facts], *, contents: bool) -> list[str]:
    """Compare a folder with its record.

    Args:
        folder: The folder. A missing folder is a difference, not an error.
        recorded: What `record_folder` returned for the folder.
        contents: Whether to compare the sha256 of the files, if everything else is equal.

    Returns:
        One line for each path that differs.
    """
    try:
        current = _scan_folder(folder)
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    lines = [f"{path}: is missing" for path in sorted(recorded.keys() - current.keys())]
    lines += [f"{path}: was added later" for path in sorted(current.keys() - recorded.keys())]
    lines += [
        f"{path or '.'}: {_describe_change(current[path], recorded[path])}"
        for path in sorted(current.keys() & recorded.keys())
        if current[path] != recorded[path][:3]
    ]
    if lines or not contents:
        return lines
    files = [path for path, facts in recorded.items() if len(facts) == 4]
    try:
        return [
            f"{path}: its content has changed"
            for path, digest in zip(files, _hash_files(folder, files), strict=True)
            if digest != recorded[path][3]
        ]
    except OSError as error:
        return [f"{error.filename}: cannot be read ({error.strerror})"]


def hash_states(folder: Path) -> str:
    """Return a hash over the states of all files below a folder, without reading the files.

    A state has the time of the last change to content or mode, which no program can set. So while
    the hash stays the same, all contents stay the same too.
    """
    checksum = hashlib.sha256()
    for path, _, names in os.walk(folder):
        for name in names:
            state = os.lstat(f"{path}/{name}")
            facts = (path, name, state.st_dev, state.st_ino, state.st_size, state.st_ctime_ns)
            checksum.update(repr(facts).encode("utf-8", "surrogateescape"))
    return checksum.hexdigest()


def _describe_change(now: Facts, before: Facts) -> str:
    """Describe how the facts of one path differ."""
    if len(now) != len(before[:3]) or isinstance(now[0], str) or isinstance(before[0], str):
        return "is another kind of file, or leads elsewhere"
    if now[0] != before[0]:
        return f"has mode {now[0]:04o}, not {before[0]:04o}"
    if now[1] != before[1]:
        return f"has {now[1]} bytes, not {before[1]}"
    return "was written later"


def render_record(recorded: dict[str, Facts]) -> str:
    """Return the text that `read_record` reads."""
    return json.dumps({"format": FORMAT, "files": recorded}, separators=(",", ":"))


def read_record(file: Path) -> dict[str, Facts] | None:
    """Return the record in a file; None if the file is missing, damaged or of another format."""
    try:
        document = json.loads(file.read_text(encoding="ascii"))
        recorded = document["files"] if document["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(recorded, dict):
        return None
    is_valid = all(isinstance(facts, list) and facts for facts in recorded.values())
    return recorded if is_valid else None


def _scan_folder(folder: Path) -> dict[str, Facts]:
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


def _hash_files(folder: Path, files: list[str]) -> Iterator[str]:
    """Yield the sha256 of each file, in order."""

    def hash_group(start: int) -> list[str]:
        return [_hash_file(f"{folder}/{path}") for path in files[start : start + _GROUP_SIZE]]

    starts = range(0, len(files), _GROUP_SIZE)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for digests in pool.map(hash_group, starts):
            yield from digests


def _hash_file(path: str) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
