"""The command `cache`: show, check or shrink the builder's cache.

Everything in the cache can be made or fetched again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core import cache_inspection
from builder.core.command_context import Context, Result
from rosetta.core import option_types
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.cache import Cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("du", help="show how much space each kind of entry takes")
    actions.add_parser(
        "check",
        help="compare all entries with the record of their contents, and remove those that differ",
    )
    prune = actions.add_parser(
        "prune",
        help="remove entries that were not used for some time, and the remains of killed runs",
    )
    prune.add_argument(
        "--days",
        type=option_types.parse_number,
        default=30.0,
        help="remove entries that were not used for this number of days (default: 30)",
    )
    prune.add_argument(
        "--sources", action="store_true", help="also remove the git caches of sources"
    )
    prune.add_argument(
        "--dry-run", action="store_true", help="print what would be removed, but remove nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.action == "du":
        return _show_usage(context.cache)
    if arguments.action == "check":
        return _check_entries(context.cache)
    return _prune_entries(context.cache, arguments)


def _show_usage(cache: Cache) -> Result:
    """Return how much space each kind of entry takes."""
    root = str(cache.root)
    if cache.root.exists() and not cache.root.is_dir():
        raise UserError("is not a folder", root, "set ROSETTA_CACHE to the cache you mean")
    sizes = cache_inspection.measure_usage(cache.root)
    lines = [f"{size / 1e6:>10.1f} MB  {kind}" for kind, size in sizes.items()]
    lines.append(f"{sum(sizes.values()) / 1e6:>10.1f} MB  {root}")
    return Result({"root": root, "bytes": sizes}, "\n".join(lines))


def _prune_entries(cache: Cache, arguments: argparse.Namespace) -> Result:
    """Remove old entries, or list them in a dry run."""
    sizes = cache_inspection.prune_entries(
        cache, days=arguments.days, sources=arguments.sources, dry_run=arguments.dry_run
    )
    freed = "would free" if arguments.dry_run else "freed"
    summary = f"{freed} {sum(sizes.values()) / 1e6:.1f} MB in {len(sizes)} entries"
    return Result({"removed": sizes, "dry_run": arguments.dry_run}, "\n".join([*sizes, summary]))


def _check_entries(cache: Cache) -> Result:
    """Remove the entries whose contents have changed, and list them."""
    count, damaged = cache_inspection.check_entries(cache)
    lines = [_describe_damage(entry, differences) for entry, differences in damaged.items()]
    if damaged:
        lines.append(
            f"{len(damaged)} of {count} entries of {cache.root} had changed and are removed; "
            "the next build that needs them makes them again"
        )
    else:
        lines.append(f"all {count} entries of {cache.root} are unchanged")
    return Result(
        {"root": str(cache.root), "checked": count, "damaged": damaged},
        "\n".join(lines),
        ok=not damaged,
    )


def _describe_damage(entry: str, differences: Sequence[str]) -> str:
    """Return the first difference of an entry, and how many more there are."""
    others = len(differences) - 1
    more = f" (and {others} more)" if others else ""
    return f"{entry}: {differences[0]}{more}"
