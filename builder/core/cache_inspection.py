"""Check, measure and prune the builder's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from builder.core import cache_folder, folder_checksums, log
from builder.core.cache import Cache, remove_path
from builder.core.cache_records import read_stamp
from rosetta.core.atomic_files import is_temporary
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

# The folders that have entries. "git", with the upstream sources, is added on request only, because
# sources are small and the hardest to fetch again.
_KINDS = ("base", "bin", "debs", "env", "layers", "pyc", "stamps", "trees", "wheels")


def check_entries(cache: Cache) -> tuple[int, dict[str, list[str]]]:
    """Compare entries with their checksums, stamps with their hash, and blobs with their name.

    Entries without recorded checksums are skipped.

    Damaged entries are removed; the next build makes them again. Sources are not read, because git
    checks the hash of each object when it uses the object.

    Returns:
        The number of entries, stamps and blobs that were compared, and the problems of the
        damaged ones, by name.
    """
    _require_cache(cache)
    damaged: dict[str, list[str]] = {}
    with cache.in_use(exclusive=True):
        checksums = {file.name: file for file in _list_files(cache.root, "sums")}
        entries = [
            (entry, checksums[f"{entry.parent.name}-{entry.name}"])
            for entry in _list_entries(cache.root, sources=False)
            if f"{entry.parent.name}-{entry.name}" in checksums
        ]
        stamps = [
            stamp
            for stamp in _list_files(cache.root, "stamps")
            if not stamp.name.startswith("docker-")
        ]
        blobs = _list_files(cache.root, "blobs/sha256")
        count = len(entries) + len(stamps) + len(blobs)
        with log.progress("cache check", count, "entries") as advance:
            for entry, file in entries:
                if problems := _check_entry(entry, file):
                    damaged[f"{entry.parent.name}/{entry.name}"] = problems
                    remove_path(entry)
                    file.unlink()
                advance(1)
            for stamp in stamps:
                if read_stamp(stamp) is None:
                    problem = "its hash does not match its content, or an earlier version wrote it"
                    damaged[f"stamps/{stamp.name}"] = [problem]
                    remove_path(stamp)
                advance(1)
            for blob in blobs:
                if not _is_intact_blob(blob):
                    damaged[f"blobs/{blob.name}"] = ["its content does not match its name"]
                    remove_path(blob)
                advance(1)
    return count, damaged


def _check_entry(entry: Path, checksums: Path) -> list[str]:
    recorded = folder_checksums.read_record(checksums)
    if not recorded:
        return ["was made by an earlier version, without checksums; the next build makes it again"]
    return folder_checksums.list_differences(entry, recorded, contents=True)


def _is_intact_blob(blob: Path) -> bool:
    if blob.is_symlink() or not blob.is_file():
        return False
    with open(blob, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == blob.name


def measure_usage(root: Path) -> dict[str, int]:
    """Return the bytes on disk of each folder of the cache.

    A file with several hard links counts for the first of its folders, in alphabetical order.
    """
    if not root.is_dir():
        return {}
    seen: set[tuple[int, int]] = set()
    return {
        folder.name: _measure_folder(folder, seen)
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.is_symlink()
    }


def _measure_folder(folder: Path, seen: set[tuple[int, int]]) -> int:
    """Return the bytes on disk of the files whose device and inode are not in `seen` yet."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            state = os.lstat(os.path.join(parent, name))
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                total += state.st_blocks * 512
    return total


def prune_entries(cache: Cache, *, days: float, sources: bool, dry_run: bool) -> dict[str, int]:
    """Remove temporary entries, entries not used lately, and blobs that no layer record names.

    The function waits for the builds that use the cache. Nothing behind a symbolic link is touched:
    a link in place of an entry is removed itself, a link in place of a folder of entries is left.

    Args:
        cache: The cache.
        days: Entries that were not used for this many days are removed.
        sources: Whether to prune the upstream sources, too.
        dry_run: Whether to remove nothing.

    Returns:
        The bytes of each removed entry, by name.
    """
    _require_cache(cache)
    # The cache sets the modification time of an entry when it is used.
    oldest_use = time.time() - days * 86400
    removed = {}
    with cache.in_use(exclusive=True):
        for entry in _list_entries(cache.root, sources=sources):
            if not is_temporary(entry.name) and entry.lstat().st_mtime >= oldest_use:
                continue
            removed[f"{entry.parent.name}/{entry.name}"] = _measure_entry(entry)
            if not dry_run:
                _remove_entry(cache.root, entry)
        for blob in _list_unused_blobs(cache.root, removed):
            removed[f"blobs/{blob.name}"] = blob.lstat().st_size
            if not dry_run:
                remove_path(blob)
    return removed


def _measure_entry(entry: Path) -> int:
    if entry.is_dir() and not entry.is_symlink():
        return _measure_folder(entry, set())
    return entry.lstat().st_size


def _remove_entry(root: Path, entry: Path) -> None:
    remove_path(entry)
    if not (root / "sums").is_symlink():
        (root / "sums" / f"{entry.parent.name}-{entry.name}").unlink(missing_ok=True)


def _list_unused_blobs(root: Path, removed: Collection[str]) -> Iterator[Path]:
    """Yield temporary blobs, and blobs that no remaining record of a layer names.

    Args:
        root: The folder of the cache.
        removed: The names of the entries that are removed, or would be in a dry run.
    """
    used_digests = set()
    for record in (root / "layers").glob("*.json"):
        if f"layers/{record.name}" not in removed:
            # A record that cannot be read names no blob; its layer is made again.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                digest = json.loads(record.read_text(encoding="ascii"))["digest"]
                used_digests.add(digest.removeprefix("sha256:"))
    yield from (file for file in _list_files(root, "blobs") if is_temporary(file.name))
    yield from (b for b in _list_files(root, "blobs/sha256") if b.name not in used_digests)


def _require_cache(cache: Cache) -> None:
    if not (cache.root / cache_folder.TAG).is_file():
        raise UserError(
            "is not a cache of the builder",
            str(cache.root),
            "set ROSETTA_CACHE to the cache you mean; nothing was touched",
            kind=CONFLICT,
        )


def _list_entries(root: Path, *, sources: bool) -> Iterator[Path]:
    kinds = (*_KINDS, "git") if sources else _KINDS
    for kind in kinds:
        yield from _list_files(root, kind)


def _list_files(root: Path, folder: str) -> list[Path]:
    """Return the paths in a folder of the cache.

    The result is empty if the folder, or a folder above it, is a symbolic link.
    """
    path = root
    for part in folder.split("/"):
        path /= part
        if path.is_symlink():
            log.warn(f"{path} is a symbolic link: the files behind it are left alone")
            return []
    return sorted(path.iterdir()) if path.is_dir() else []
