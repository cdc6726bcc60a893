"""Move pins along the branches they track, try the patches at once on what they move to, and say
what broke which.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.command_context import Result
from builder.core.manifest import GitSource
from builder.release.bump import forecast, journal, lock_records, plan, report, working_copy
from builder.upstream.source import access
from rosetta.core import option_types
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.release.bump.journal import Journal
    from builder.release.bump.plan import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help="a git source of the manifest (default: all)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--forecast",
        action="store_true",
        help="change nothing; end with status 1 if a patch series does not apply at the tip",
    )
    what.add_argument(
        "--continue",
        dest="proceed",
        action="store_true",
        help="continue to the same commits after you repaired patches",
    )
    what.add_argument(
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
        type=option_types.whole_number(minimum=0, maximum=999_999),
        default=30,
        metavar="N",
        help="the number of upstream commits to show for each source (default: 30)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    for option in ("jax", "python"):
        if getattr(arguments, option) and not (arguments.forecast and arguments.jax):
            raise UserError(
                "goes with --forecast" + (" --jax" if option == "python" else ""),
                f"--{option}",
                "give both",
            )
    if arguments.forecast:
        shipped = manifest.load(context.manifest_path)
        reach = access(context, shipped)
        reports = [
            plan.examine(source, reach, accept=arguments.accept)
            for source in _sources(shipped, arguments.sources)
        ]
        result = _result(reports, lock_records.Changes({}), arguments)
        return (
            _on_newest_jax(context, shipped, reports, result, arguments)
            if arguments.jax
            else result
        )
    with context.cache.lock(f"bump-{journal.new(context.cache, context.manifest_path).file.stem}"):
        shipped = manifest.load(context.manifest_path)
        kept = journal.load(context.cache, context.manifest_path)
        if arguments.abort:
            return _abort(shipped, kept, arguments.sources)
        if arguments.proceed and not kept:
            raise UserError(
                "no bump of this manifest waits to go on",
                "bump --continue",
                "start one: build.py bump",
            )
        if kept:
            kept.finish(shipped.root)
            shipped = manifest.load(context.manifest_path)
        targets = (
            {name: entry.target for name, entry in kept.entries.items() if entry.target}
            if kept and arguments.proceed
            else {}
        )
        sources = _sources(shipped, arguments.sources or list(targets))
        if kept and not (arguments.proceed or kept.running):
            kept = kept.without(source.name for source in sources)
        return _moved(
            context,
            shipped,
            sources,
            kept or journal.new(context.cache, context.manifest_path),
            targets,
            arguments,
        )


def _on_newest_jax(
    context: Context,
    shipped: Manifest,
    reports: Sequence[Report],
    result: Result,
    arguments: argparse.Namespace,
) -> Result:
    """Return the forecast of the packages: a copy is bumped as far as its stacks apply, and tried
    on the newest JAX.
    """
    folder = Path("build/forecast").absolute()
    with context.cache.lock("forecast"):
        there = replace(context, manifest_path=folder / "tree" / working_copy.FILE)
        working_copy.copy(shipped, context.manifest_path, folder / "tree")
        if old := journal.load(context.cache, there.manifest_path):
            old.close()  # of a copy that is gone
        copied = manifest.load(there.manifest_path)
        moving = [
            source
            for name in (one.source.name for one in reports)
            if isinstance(source := copied.source(name), GitSource)
        ]
        _moved(
            there, copied, moving, journal.new(context.cache, there.manifest_path), {}, arguments
        )
        names = [
            name
            for name, entry in shipped.distributions.items()
            if {one.source.name for one in reports} & set(entry.sources)
        ]
        found = forecast.run(there, names, folder, arguments.python)
    return Result(
        {**result.data, "newest_jax": found},
        f"{result.text}\n{forecast.text(found)}",
        ok=result.ok and all(one["ok"] for one in found.values()),
    )


def _sources(shipped: Manifest, names: Sequence[str]) -> list[GitSource]:
    found = []
    for name in dict.fromkeys(names or shipped.sources):
        source = shipped.source(name)
        if isinstance(source, GitSource):
            found.append(source)
        elif names:
            raise UserError(
                f"{name} is a release wheel: no branch leads anywhere",
                "bump",
                "set `wheel` and `sha256` in the manifest by hand",
            )
    return found


def _moved(
    context: Context,
    shipped: Manifest,
    sources: Sequence[GitSource],
    kept: Journal,
    targets: dict[str, str],
    arguments: argparse.Namespace,
) -> Result:
    reach = access(context, shipped)
    kept.running = True
    kept.records = kept.records or {path: _text(shipped, path) for path in lock_records.FILES}
    reports = []
    for source in sources:
        with log.stage(f"bump {source.name}"):
            found = plan.examine(
                source,
                reach,
                accept=arguments.accept,
                tip_only=arguments.tip_only,
                target=targets.get(source.name, ""),
            )
        reports.append(found)
        if found.finding is None and (found.writes or not found.ok or source.name in kept.entries):
            kept.begin(source, shipped.root, found.tip)
        if found.finding is None and found.writes:
            kept.write(source, shipped.root, found.writes.pin, found.writes.files)
        if found.ok and source.name in kept.entries:
            kept.entries[source.name].target = ""
            kept.save()
    standing = [
        one.source.name
        for one in reports
        if one.source.name in kept.entries and one.good == one.pin
    ]
    changes = lock_records.renew(manifest.load(context.manifest_path), reach, standing)
    kept.running = False
    if any(entry.target for entry in kept.entries.values()):
        kept.save()
    else:
        kept.close()
    return _result(reports, changes, arguments)


def _text(shipped: Manifest, path: str) -> str | None:
    file = shipped.root / path
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _abort(shipped: Manifest, kept: Journal | None, names: Sequence[str]) -> Result:
    if names:
        raise UserError("puts all sources back, not some", "bump --abort", "leave the names out")
    if kept is None:
        raise UserError(
            "no bump of this manifest waits to go on",
            "bump --abort",
            "there is nothing to put back",
        )
    changed = kept.abort(shipped)
    return Result(
        {"restored": changed},
        "\n".join(["everything is as it was; put back:", *(f"  {path}" for path in changed)]),
    )


def _result(
    reports: Sequence[Report], changes: lock_records.Changes, arguments: argparse.Namespace
) -> Result:
    data: dict[str, Any] = {
        "forecast": arguments.forecast,
        "summary": dict(report.summary(reports)),
        "sources": {one.source.name: report.data(one, arguments.log) for one in reports},
        "locks": dataclasses.asdict(changes),
    }
    return Result(
        data,
        report.text(reports, arguments.log, changes, forecast=arguments.forecast),
        ok=all(one.ok for one in reports),
    )
