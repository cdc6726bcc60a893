"""Show what the builder's cache holds, or shrink it: everything in it can be made or fetched
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core import cache_inspection
from builder.core.command_context import Context, Result
from rosetta.core import option_types
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse

    from builder.core.cache import Cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("du", help="show how much space each kind of entry takes")
    actions.add_parser(
        "check",
        help="compare all entries with the record of their contents, and remove what differs",
    )
    prune = actions.add_parser(
        "prune", help="remove what was not used for some time, and what killed runs left"
    )
    prune.add_argument(
        "--days",
        type=option_types.parse_number,
        default=30.0,
        help="remove what was not used for this number of days (default: 30)",
    )
    prune.add_argument(
        "--sources", action="store_true", help="also remove the git caches of sources"
    )
    prune.add_argument(
        "--dry-run", action="store_true", help="print what would go, but remove nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.action == "du":
        if context.cache.root.exists() and not context.cache.root.is_dir():
            raise UserError(
                "is not a folder",
                str(context.cache.root),
                "set ROSETTA_CACHE to the cache you mean",
            )
        sizes = cache_inspection.measure_usage(context.cache.root)
        text = "\n".join(f"{size / 1e6:>10.1f} MB  {kind}" for kind, size in sizes.items())
        return Result(
            {"root": str(context.cache.root), "bytes": sizes},
            f"{text}\n{sum(sizes.values()) / 1e6:>10.1f} MB  {context.cache.root}",
        )
    if arguments.action == "check":
        return _check(context.cache)
    gone = cache_inspection.prune_entries(
        context.cache, days=arguments.days, sources=arguments.sources, dry_run=arguments.dry_run
    )
    size = sum(gone.values())
    text = "\n".join(
        [
            *gone,
            (
                f"{'would free' if arguments.dry_run else 'freed'} {size / 1e6:.1f} MB in "
                f"{len(gone)} entries"
            ),
        ]
    )
    return Result({"removed": gone, "dry_run": arguments.dry_run}, text)


def _check(cache: Cache) -> Result:
    checked, damaged = cache_inspection.check_entries(cache)
    lines = [
        f"{entry}: {what[0]}" + (f" (and {len(what) - 1} more)" if len(what) > 1 else "")
        for entry, what in damaged.items()
    ]
    if damaged:
        lines.append(
            f"{len(damaged)} of {checked} entries of {cache.root} were not as they were made, "
            "and are removed: the next build that needs one makes it again"
        )
    else:
        lines.append(f"all {checked} entries of {cache.root} are as they were made")
    return Result(
        {"root": str(cache.root), "checked": checked, "damaged": damaged},
        "\n".join(lines),
        ok=not damaged,
    )
