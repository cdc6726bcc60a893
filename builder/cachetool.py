"""Show what the builder's cache holds, or shrink it: everything in it can be made or fetched again."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from builder.cache import Cache, remove
from builder.verb import Context, Result

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

_KEPT = ("git", "locks")  # sources are small and the hardest to get again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="du|prune")
    actions.add_parser("du", help="how much each kind takes, hard links counted once")
    prune = actions.add_parser("prune", help="remove what was not used for some time, and what killed runs left")
    prune.add_argument("--days", type=float, default=30.0, help="how long unused (default: 30)")
    prune.add_argument("--sources", action="store_true", help="the git caches too")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """The verb."""
    if arguments.action == "du":
        sizes = usage(context.cache.root)
        text = "\n".join(f"{size / 1e6:>10.1f} MB  {kind}" for kind, size in sizes.items())
        return Result({"root": str(context.cache.root), "bytes": sizes}, f"{text}\n{sum(sizes.values()) / 1e6:>10.1f} MB  {context.cache.root}")
    gone = prune(context.cache, days=arguments.days, sources=arguments.sources, dry_run=arguments.dry_run)
    size = sum(gone.values())
    text = "\n".join([*gone, f"{'would free' if arguments.dry_run else 'freed'} {size / 1e6:.1f} MB in {len(gone)} entries"])
    return Result({"removed": gone, "dry_run": arguments.dry_run}, text)


def usage(root: Path) -> dict[str, int]:
    """Bytes on disk below each kind; a file with several names counts where it is first met."""
    seen: set[tuple[int, int]] = set()
    return {kind.name: _size(kind, seen) for kind in sorted(root.iterdir()) if kind.is_dir()} if root.is_dir() else {}


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
    """Remove entries unused for `days` and temporary ones; returns the bytes of each. Entries in use are waited for."""
    limit = time.time() - days * 86400
    gone = {}
    for entry in _entries(cache.root, sources=sources):
        if entry.name.startswith(".tmp-") or entry.stat().st_mtime < limit:
            kind, name = entry.parent.name, entry.name.removeprefix(".tmp-")
            with cache.lock(f"{kind}-{name}"):
                gone[f"{kind}/{entry.name}"] = _size(entry, set()) if entry.is_dir() else entry.lstat().st_size
                if not dry_run:
                    remove(entry)
    return gone


def _entries(root: Path, *, sources: bool) -> Iterator[Path]:
    for kind in sorted(root.iterdir()) if root.is_dir() else ():
        if kind.is_dir() and (sources or kind.name not in _KEPT) and kind.name != "locks":
            yield from sorted(kind.iterdir())
