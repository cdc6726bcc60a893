"""Look through the builder's cache: its sizes, what is damaged, and what was not used for long."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

from builder.core import cache_folder, folder_checksums, log
from builder.core.cache import Cache, remove
from builder.core.cache_records import read_stamp
from rosetta.core.atomic_files import is_temporary
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_KINDS = (
    "base",
    "bin",
    "debs",
    "env",
    "layers",
    "pyc",
    "stamps",
    "trees",
    "wheels",
)  # and "git" on request: sources are small and the hardest to get again


def check(cache: Cache) -> tuple[int, dict[str, list[str]]]:
    """Compare every entry with its record, and every blob with its name.

    What is damaged is removed: the next build makes it again. Sources are not read: git knows each
    of their objects by its hash, and checks it when it is used.

    Returns:
        How many entries and blobs were compared, and what is wrong with those that are damaged, by
        name.
    """
    _require_cache(cache)
    damaged = {}
    with cache.used(alone=True):
        records = {record.name: record for record in _files(cache.root, "sums")}
        entries = [
            (entry, records.get(f"{entry.parent.name}-{entry.name}"))
            for entry in _entries(cache.root, sources=False)
        ]
        recorded = [(entry, record) for entry, record in entries if record]
        blobs = list(_files(cache.root, "blobs/sha256"))
        stamped = [
            stamp for stamp in _files(cache.root, "stamps") if not stamp.name.startswith("docker-")
        ]
        with log.progress(
            "cache check", len(recorded) + len(stamped) + len(blobs), "entries"
        ) as advance:
            for entry, record in recorded:
                known = folder_checksums.read(record)
                wrong = (
                    folder_checksums.differences(entry, known, contents=True)
                    if known
                    else ["has no sums of its contents, as those of earlier versions"]
                )
                if wrong:
                    damaged[f"{entry.parent.name}/{entry.name}"] = wrong
                    remove(entry)
                    record.unlink()
                advance(1)
            for stamp in stamped:
                if read_stamp(stamp) is None:
                    damaged[f"stamps/{stamp.name}"] = [
                        "its hash does not fit its content, or it is of an earlier version"
                    ]
                    remove(stamp)
                advance(1)
            for blob in blobs:
                if blob.is_symlink() or not blob.is_file() or _digest(blob) != blob.name:
                    damaged[f"blobs/{blob.name}"] = ["its content is not what its name says"]
                    remove(blob)
                advance(1)
    return len(recorded) + len(stamped) + len(blobs), damaged


def _digest(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def usage(root: Path) -> dict[str, int]:
    """Bytes on disk below each kind; a file with several names counts where it is first met."""
    seen: set[tuple[int, int]] = set()
    return (
        {
            kind.name: _size(kind, seen)
            for kind in sorted(root.iterdir())
            if kind.is_dir() and not kind.is_symlink()
        }
        if root.is_dir()
        else {}
    )


def _size(folder: Path, seen: set[tuple[int, int]]) -> int:
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            state = os.lstat(os.path.join(where, name))
            if (state.st_dev, state.st_ino) not in seen:
                seen.add((state.st_dev, state.st_ino))
                total += state.st_blocks * 512
    return total


def prune(cache: Cache, *, days: float, sources: bool, dry_run: bool) -> dict[str, int]:
    """Remove entries unused for `days` and temporary ones; returns the bytes of each. Waits for the
    builds that use the cache.

    Nothing behind a symbolic link is touched: a link in place of an entry is removed itself, one in
    place of a folder of entries is left.
    """
    _require_cache(cache)
    limit = time.time() - days * 86400
    gone = {}
    with cache.used(alone=True):
        for entry in _entries(cache.root, sources=sources):
            if is_temporary(entry.name) or entry.lstat().st_mtime < limit:
                gone[f"{entry.parent.name}/{entry.name}"] = (
                    _size(entry, set())
                    if entry.is_dir() and not entry.is_symlink()
                    else entry.lstat().st_size
                )
                if not dry_run:
                    remove(entry)
                    if not (cache.root / "sums").is_symlink():
                        (cache.root / "sums" / f"{entry.parent.name}-{entry.name}").unlink(
                            missing_ok=True
                        )
        for blob in _unnamed(cache.root, gone):
            gone[f"blobs/{blob.name}"] = blob.lstat().st_size
            if not dry_run:
                remove(blob)
    return gone


def _unnamed(root: Path, gone: Collection[str]) -> Iterator[Path]:
    """Blobs that no record of a layer names once those in `gone` are gone, and what killed runs
    left of blobs.
    """
    named = set()
    for record in (root / "layers").glob("*.json"):
        if f"layers/{record.name}" not in gone:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                named.add(
                    json.loads(record.read_text(encoding="ascii"))["digest"].removeprefix("sha256:")
                )
    yield from (entry for entry in _files(root, "blobs") if is_temporary(entry.name))
    yield from (blob for blob in _files(root, "blobs/sha256") if blob.name not in named)


def _require_cache(cache: Cache) -> None:
    if not (cache.root / cache_folder.TAG).is_file():
        raise UserError(
            "is not a cache of the builder's",
            str(cache.root),
            "set ROSETTA_CACHE to the cache you mean; nothing was touched",
            kind=CONFLICT,
        )


def _entries(root: Path, *, sources: bool) -> Iterator[Path]:
    for kind in (*_KINDS, *(("git",) if sources else ())):
        yield from _files(root, kind)


def _files(root: Path, folder: str) -> list[Path]:
    """Return what lies in a folder of the cache; nothing where a symbolic link stands in place of
    it, or of a folder above it.
    """
    place = root
    for part in folder.split("/"):
        place /= part
        if place.is_symlink():
            log.warn(f"{place} is a symbolic link: what lies behind it is left alone")
            return []
    return sorted(place.iterdir()) if place.is_dir() else []
