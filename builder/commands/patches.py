"""Try, show, refresh, import and count the patches that stand on the upstreams: check | status |
refresh | import | stats.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.core.command_context import Result
from builder.release.bump import statistics
from builder.upstream import (
    overlay,
    patch_file,
    patch_import,
    patch_refresh,
    patch_series,
    patched_source,
)
from builder.upstream.source import Access, acquire_source, configure_access
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import GitSource, Manifest, WheelSource
    from builder.upstream.source import Pinned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="try every patch and every overlay file",
        description="The command ends with status 1 if one of them does not apply.",
    )
    status = actions.add_parser(
        "status", help="check the patches, and show sizes, upstream status and which are stale"
    )
    refresh_ = actions.add_parser("refresh", help="rewrite stale patches, as git writes them")
    stats_ = actions.add_parser(
        "stats", help="show how many, how large and how old the patches are, now and over time"
    )
    for sub in (check, status, refresh_, stats_):
        sub.add_argument(
            "sources", nargs="*", metavar="SOURCE", help="a source of the manifest (default: all)"
        )
    take = actions.add_parser("import", help="make a patch from a commit")
    take.add_argument(
        "ref",
        metavar="REF",
        help="the hash of the commit; with --repo also HEAD, a branch or a tag",
    )
    take.add_argument(
        "--source",
        metavar="NAME",
        help="the source that the patch belongs to (default: the only one in the manifest)",
    )
    take.add_argument(
        "--repo",
        metavar="DIR",
        type=Path,
        help="a local clone that has the commit; it is only read",
    )
    take.add_argument(
        "--name", default="", help="the name of the patch (default: made from the subject)"
    )
    take.add_argument(
        "--subject", default="", help="the subject of the patch (default: the commit's)"
    )
    take.add_argument("--why", help="the reason for the patch")
    take.add_argument(
        "--status",
        help="the Upstream-Status: " + ", ".join(patch_file.STATUSES) + ", and a [reason] if any",
    )
    take.add_argument("--drop-when", help="when the patch can be dropped")
    take.add_argument("--replace", action="store_true", help="replace the patch of this --name")
    refresh_.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; list the stale patches, with status 1 if there are any",
    )
    take.add_argument(
        "--dry-run", action="store_true", help="print what would be written, but write nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """One action on the manifest's sources."""
    shipped = manifest.load(context.manifest_path)
    reach = configure_access(context, shipped)
    if arguments.action == "import":
        return _import(reach, shipped, arguments)
    sources = [shipped.source(name) for name in dict.fromkeys(arguments.sources or shipped.sources)]
    if arguments.action == "stats":
        return statistics.report_statistics(shipped, context.manifest_path.name, sources, reach)
    if arguments.action == "refresh":
        return _refresh(reach, sources, dry_run=arguments.dry_run)
    return _report(reach, sources, full=arguments.action == "status")


def _acquired(
    reach: Access, sources: Sequence[GitSource | WheelSource]
) -> Iterator[tuple[GitSource | WheelSource, Pinned]]:
    # What can be told without the upstreams is told first.
    for source in sources:
        patch_series.load_patches(source.patches)
        overlay.load_overlay(source.overlay)
    for source in sources:
        yield source, acquire_source(source, reach)


def _report(reach: Access, sources: Sequence[GitSource | WheelSource], *, full: bool) -> Result:
    data: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    ok = True
    for source, pinned in _acquired(reach, sources):
        patches = patch_series.load_patches(source.patches)
        found = patched_source.survey_patches(pinned, patches, overlay.load_overlay(source.overlay))
        stale = {patch.name for patch in patch_refresh.find_stale_patches(pinned, patches)[0]}
        listed = []
        for patch, result in zip(patches, found.results, strict=True):
            added, removed = (
                sum(getattr(file, side) for file in patch.files) for side in ("added", "removed")
            )
            status, is_stale = patch.fields["Upstream-Status"], patch.name in stale
            listed.append(
                dataclasses.asdict(result)
                | {
                    "added": added,
                    "removed": removed,
                    "upstream_status": status,
                    "drop_when": patch.fields["Drop-When"],
                    "stale": is_stale,
                }
            )
            more = result.detail or ("stale: run `build.py patches refresh`" if is_stale else "")
            size = (f"+{added} -{removed}", status.split(" [")[0]) if full else ()
            rows.append((source.name, patch.name, *size, result.outcome, more))
        for laid in found.overlaid:
            size = ("", "") if full else ()
            rows.append((source.name, f"overlay {laid.path}", *size, laid.outcome, laid.detail))
        ok &= all(
            outcome == "applied"
            for outcome in (
                *(one.outcome for one in found.results),
                *(one.outcome for one in found.overlaid),
            )
        )
        data[source.name] = {
            "commit": pinned.commit,
            "history": pinned.history,
            "patched_commit": found.commit,
            "patched_tree": found.tree,
            "exported_tree": found.exported_tree,
            "patches": listed,
            "overlay": [dataclasses.asdict(laid) for laid in found.overlaid],
        }
    head = ("source", "patch", *(("lines", "upstream") if full else ()), "outcome", "")
    count = sum(len(one["patches"]) + len(one["overlay"]) for one in data.values())
    applied = sum(1 for row in rows if row[-2] == "applied")
    return Result(
        {"sources": data},
        f"{_table([head, *rows] if full else rows)}\n{applied} of {count} applied".strip(),
        ok=ok or full,
    )


def _refresh(reach: Access, sources: Sequence[GitSource | WheelSource], *, dry_run: bool) -> Result:
    data: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    ok = True
    for source, pinned in _acquired(reach, sources):
        better, found = patch_refresh.find_stale_patches(
            pinned, patch_series.load_patches(source.patches)
        )
        for patch in better:
            if not dry_run:
                write_atomic(patch.file, patch.raw)
            rows.append((source.name, patch.name, "stale" if dry_run else "rewritten", ""))
        failed = [result for result in found.results if result.outcome != "applied"]
        rows += [(source.name, result.name, result.outcome, result.detail) for result in failed]
        ok &= not failed and not (dry_run and better)
        data[source.name] = {
            "stale" if dry_run else "rewritten": [patch.name for patch in better],
            "failed": [dataclasses.asdict(one) for one in failed],
        }
    return Result({"sources": data}, _table(rows) or "all patches are as git writes them", ok=ok)


def _import(reach: Access, shipped: Manifest, arguments: argparse.Namespace) -> Result:
    if not arguments.source and len(shipped.sources) != 1:
        raise UserError("is needed", "--source", f"one of: {', '.join(shipped.sources)}")
    source = shipped.source(arguments.source or next(iter(shipped.sources)))
    pinned, clone = patch_import.join_clone(
        acquire_source(source, reach), arguments.repo and arguments.repo.absolute()
    )
    commit = patch_import.resolve_commit(pinned.git, clone, arguments.ref)
    given = {
        "Why": arguments.why,
        "Upstream-Status": arguments.status,
        "Drop-When": arguments.drop_when,
    }
    fields = {key: value.strip() for key, value in given.items() if value}
    made = patch_import.plan_import(
        pinned,
        source.patches,
        commit,
        name=arguments.name,
        subject=arguments.subject,
        fields=fields,
        replaces=arguments.replace,
    )
    for file, content in () if arguments.dry_run else made.files:
        write_atomic(file, content)
    written = [str(file) for file, _ in made.files]
    text = (
        f"{source.name}: {made.name} from {commit}: "
        f"{'would write' if arguments.dry_run else 'wrote'} {', '.join(written)}"
    )
    failing = [dataclasses.asdict(result) for result in made.failing]
    lines = [
        text,
        *(
            f"still to mend: {result.name} is {result.outcome}: {result.detail}"
            for result in made.failing
        ),
    ]
    data = {
        "source": source.name,
        "name": made.name,
        "commit": commit,
        "files": written,
        "written": not arguments.dry_run,
        "failing": failing,
    }
    return Result(data, "\n".join(lines))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
