"""`build.py bump`: move pins along their branches, and find what broke the patches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.command_context import Result
from builder.core.manifest import GitSource
from builder.pipeline.step_plans import comparison, goldens, plan_runs
from builder.release.bump import forecast, plan, report
from builder.release.bump.journal import load_journal, new_journal
from builder.release.bump.lock_records import LockChanges
from builder.release.bump.pin_moves import MoveOptions, move_pins, move_pins_in_copy
from builder.upstream.source import configure_access
from rosetta.core import option_types
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.bump.journal import Journal
    from builder.release.bump.plan import SourceReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="a git source of the manifest (default: all)"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--forecast",
        action="store_true",
        help="change nothing; end with status 1 if a patch series does not apply at the tip",
    )
    action.add_argument(
        "--continue",
        dest="proceed",
        action="store_true",
        help="continue to the same commits after you repaired patches",
    )
    action.add_argument(
        "--abort",
        action="store_true",
        help="undo a bump that has not finished",
    )
    parser.add_argument(
        "--jax",
        action="store_true",
        help=(
            "forecast: also resolve, bake and import T5X and Pax with the newest JAX, in "
            "build/forecast"
        ),
    )
    parser.add_argument(
        "--python",
        metavar="VERSION|PATH",
        default="",
        help=(
            "forecast: the Python for --jax (default: the version that the manifest sets for the "
            "line, or else the newest supported one on this machine)"
        ),
    )
    parser.add_argument(
        "--plans",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "also compile recorded plans at the new pins, and report which ones moved: the name "
            f"of a plan, {goldens.CHEAP} or {goldens.ALL} (may be repeated)"
        ),
    )
    parser.add_argument(
        "--tip-only",
        action="store_true",
        help="move a pin only if the patch series applies at the tip",
    )
    parser.add_argument(
        "--accept",
        action="store_true",
        help="carry out proposals: drop patches that upstream took, and accept merges",
    )
    parser.add_argument(
        "--log",
        type=option_types.make_whole_number_type(minimum=0, maximum=999_999),
        default=30,
        metavar="N",
        help="the number of upstream commits to show for each source (default: 30)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    _check_options(arguments)
    if arguments.plans:  # refuses an unknown name
        goldens.choose_goldens(context.root / goldens.FOLDER, arguments.plans)
    if arguments.forecast:
        return _forecast_bump(context, arguments)
    lock = new_journal(context.cache, context.manifest_path).file.stem
    with context.cache.lock(f"bump-{lock}"):
        journal = load_journal(context.cache, context.manifest_path)
        if arguments.abort:
            return _abort_bump(manifest.load(context.manifest_path), journal, arguments.sources)
        if arguments.proceed and not journal:
            raise _no_bump("bump --continue", "start one: build.py bump")
        if journal:
            journal.finish_writes(manifest.load(context.manifest_path).root)
        return _bump_sources(context, journal, arguments)


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.jax and not arguments.forecast:
        raise UserError("needs --forecast", "--jax", "give both")
    if arguments.python and not (arguments.forecast and arguments.jax):
        raise UserError("needs --forecast --jax", "--python", "give all three")


def _bump_sources(
    context: Context, journal: Journal | None, arguments: argparse.Namespace
) -> Result:
    """Move pins, and report what became of each source."""
    targets = {}
    if journal and arguments.proceed:
        targets = {name: entry.target for name, entry in journal.entries.items() if entry.target}
    sources = _choose_sources(
        manifest.load(context.manifest_path), arguments.sources or list(targets)
    )
    if journal and not (arguments.proceed or journal.running):
        journal = journal.without(source.name for source in sources)
    reports, changes = move_pins(
        context,
        sources,
        journal or new_journal(context.cache, context.manifest_path),
        MoveOptions(arguments.accept, arguments.tip_only, targets),
    )
    result = _make_result(reports, changes, arguments)
    moved = [report.source.name for report in reports]
    folder = context.root / plan_runs.FOLDER
    return _add_plans(result, context, moved, arguments.plans, folder)


def _add_plans(
    result: Result, context: Context, moved: Iterable[str], names: Sequence[str], folder: Path
) -> Result:
    """Return a result with the plans that moved, or the same result if no plan is asked for.

    Args:
        result: The result of the bump.
        context: The context with the manifest at the new pins.
        moved: The sources. Plans of distributions without them are left out.
        names: The names of plans.
        folder: The folder of the environments that compile.
    """
    if not names:
        return result
    bumped = manifest.load(context.manifest_path)
    selection = [
        golden
        for golden in goldens.choose_goldens(context.root / goldens.FOLDER, names)
        if set(moved) & set(bumped.distribution(golden.distribution).sources)
    ]
    comparisons = comparison.compare_at_pins(context, selection, folder)
    lines = ["plans at these pins:" if comparisons else "plans: none of these sources"]
    for entry in comparisons:
        lines += comparison.format_comparison(entry)
    return Result(
        {**result.data, "plans": [entry.as_json() for entry in comparisons]},
        "\n".join([result.text, *lines]),
        ok=result.ok and not any(entry.state == comparison.FAILED for entry in comparisons),
    )


def _forecast_bump(context: Context, arguments: argparse.Namespace) -> Result:
    """Report what a bump would do."""
    shipped = manifest.load(context.manifest_path)
    source_access = configure_access(context, shipped)
    reports = [
        plan.examine_source(source, source_access, accept=arguments.accept)
        for source in _choose_sources(shipped, arguments.sources)
    ]
    result = _make_result(reports, LockChanges({}), arguments)
    if not (arguments.jax or arguments.plans):
        return result
    names = [report.source.name for report in reports]
    folder = Path("build/forecast").absolute()
    with context.cache.lock("forecast"):
        options = MoveOptions(arguments.accept, arguments.tip_only)
        copy_context = move_pins_in_copy(context, shipped, names, folder / "tree", options)
        # Before --jax, which locks the newest JAX in the copy.
        result = _add_plans(result, copy_context, names, arguments.plans, folder / "plans")
        if not arguments.jax:
            return result
        forecasts = _forecast_newest_jax(copy_context, shipped, names, folder, arguments.python)
    return Result(
        {**result.data, "newest_jax": forecasts},
        f"{result.text}\n{forecast.forecast_as_text(forecasts)}",
        ok=result.ok and all(entry["ok"] for entry in forecasts.values()),
    )


def _forecast_newest_jax(
    context: Context, shipped: Manifest, names: Iterable[str], folder: Path, python: str
) -> dict[str, dict[str, Any]]:
    """Try the distributions of a bumped copy with the newest JAX."""
    distributions = [
        name
        for name, distribution in shipped.distributions.items()
        if set(names) & set(distribution.sources)
    ]
    return forecast.run_forecast(context, distributions, folder, python)


def _choose_sources(shipped: Manifest, names: Sequence[str]) -> list[GitSource]:
    """Return the git sources with these names, or all git sources."""
    sources = []
    for name in dict.fromkeys(names or shipped.sources):
        source = shipped.source(name)
        if isinstance(source, GitSource):
            sources.append(source)
        elif names:
            raise UserError(
                f"{name} is a release wheel, which has no branch",
                "bump",
                "set `wheel` and `sha256` in the manifest by hand",
            )
    return sources


def _abort_bump(shipped: Manifest, journal: Journal | None, names: Sequence[str]) -> Result:
    if names:
        raise UserError("restores all sources, not some", "bump --abort", "leave the names out")
    if journal is None:
        raise _no_bump("bump --abort", "there is nothing to restore")
    restored = journal.restore_all(shipped)
    lines = ["everything is as it was before the bump; restored:"]
    lines += [f"  {path}" for path in restored]
    return Result({"restored": restored}, "\n".join(lines))


def _no_bump(where: str, do: str) -> UserError:
    return UserError("no bump of this manifest is in progress", where, do)


def _make_result(
    reports: Sequence[SourceReport], changes: LockChanges, arguments: argparse.Namespace
) -> Result:
    data: dict[str, Any] = {
        "forecast": arguments.forecast,
        "summary": dict(report.summarize_sources(reports)),
        "sources": {
            source_report.source.name: report.source_as_json(source_report, arguments.log)
            for source_report in reports
        },
        "locks": dataclasses.asdict(changes),
    }
    text = report.report_as_text(reports, arguments.log, changes, forecast=arguments.forecast)
    return Result(data, text, ok=all(source_report.ok for source_report in reports))
