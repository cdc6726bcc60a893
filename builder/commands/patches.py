"""Check, show, refresh, import and count the patches of the sources.

The actions are check, status, refresh, import and stats.
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
    from builder.upstream.overlay import OverlayResult
    from builder.upstream.patch_diagnosis import PatchResult
    from builder.upstream.patch_file import Patch
    from builder.upstream.patched_source import Survey
    from builder.upstream.source import Pinned

_FULL_HEAD = ("source", "patch", "lines", "upstream", "outcome", "")


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
    refresh = actions.add_parser("refresh", help="rewrite stale patches, as git writes them")
    stats = actions.add_parser(
        "stats", help="show how many, how large and how old the patches are, now and over time"
    )
    for sub in (check, status, refresh, stats):
        sub.add_argument(
            "sources", nargs="*", metavar="SOURCE", help="a source of the manifest (default: all)"
        )
    import_parser = actions.add_parser("import", help="make a patch from a commit")
    import_parser.add_argument(
        "ref",
        metavar="REF",
        help="the hash of the commit; with --repo also HEAD, a branch or a tag",
    )
    import_parser.add_argument(
        "--source",
        metavar="NAME",
        help="the source that the patch belongs to (default: the only one in the manifest)",
    )
    import_parser.add_argument(
        "--repo",
        metavar="DIR",
        type=Path,
        help="a local clone that has the commit; it is only read",
    )
    import_parser.add_argument(
        "--name", default="", help="the name of the patch (default: made from the subject)"
    )
    import_parser.add_argument(
        "--subject", default="", help="the subject of the patch (default: the commit's)"
    )
    import_parser.add_argument("--why", help="the reason for the patch")
    import_parser.add_argument(
        "--status",
        help="the Upstream-Status: " + ", ".join(patch_file.STATUSES) + ", and a [reason] if any",
    )
    import_parser.add_argument("--drop-when", help="when the patch can be dropped")
    import_parser.add_argument(
        "--replace", action="store_true", help="replace the patch of this --name"
    )
    refresh.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing; list the stale patches, with status 1 if there are any",
    )
    import_parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, but write nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run one action on the sources of the manifest."""
    loaded = manifest.load(context.manifest_path)
    source_access = configure_access(context, loaded)
    if arguments.action == "import":
        return _import(source_access, loaded, arguments)
    names = dict.fromkeys(arguments.sources or loaded.sources)
    sources = [loaded.source(name) for name in names]
    if arguments.action == "stats":
        return statistics.report_statistics(
            loaded, context.manifest_path.name, sources, source_access
        )
    if arguments.action == "refresh":
        return _refresh(source_access, sources, dry_run=arguments.dry_run)
    return _report(source_access, sources, full=arguments.action == "status")


def _acquire_sources(
    source_access: Access, sources: Sequence[GitSource | WheelSource]
) -> Iterator[tuple[GitSource | WheelSource, Pinned]]:
    """Yield each source with its pin, after the files of all patches and overlays were checked."""
    for source in sources:
        patch_series.load_patches(source.patches)
        overlay.load_overlay(source.overlay)
    for source in sources:
        yield source, acquire_source(source, source_access)


def _report(
    source_access: Access, sources: Sequence[GitSource | WheelSource], *, full: bool
) -> Result:
    """Report what becomes of every patch and overlaid file.

    Args:
        source_access: Where the sources can be fetched.
        sources: The sources to report on.
        full: Whether the table shows sizes and upstream statuses too. The exit status is then 0
            even if a patch does not apply.
    """
    data: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    for source, pinned in _acquire_sources(source_access, sources):
        patches = patch_series.load_patches(source.patches)
        survey = patched_source.survey_patches(
            pinned, patches, overlay.load_overlay(source.overlay)
        )
        stale_patches, _ = patch_refresh.find_stale_patches(pinned, patches)
        stale_names = {patch.name for patch in stale_patches}
        reports = [
            _report_patch(patch, result, is_stale=patch.name in stale_names)
            for patch, result in zip(patches, survey.results, strict=True)
        ]
        data[source.name] = _report_source(pinned, survey, reports)
        rows += [_list_patch(source.name, report, full=full) for report in reports]
        rows += [_list_overlaid(source.name, result, full=full) for result in survey.overlaid]
    applied = sum(1 for row in rows if row[-2] == "applied")
    table = _format_table([_FULL_HEAD, *rows] if full else rows)
    text = f"{table}\n{applied} of {len(rows)} applied".strip()
    return Result({"sources": data}, text, ok=full or applied == len(rows))


def _report_source(
    pinned: Pinned, survey: Survey, patch_reports: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON object of one source."""
    return {
        "commit": pinned.commit,
        "history": pinned.history,
        "patched_commit": survey.commit,
        "patched_tree": survey.tree,
        "exported_tree": survey.exported_tree,
        "patches": patch_reports,
        "overlay": [dataclasses.asdict(result) for result in survey.overlaid],
    }


def _report_patch(patch: Patch, result: PatchResult, *, is_stale: bool) -> dict[str, Any]:
    """Return the JSON object of one patch."""
    return {
        **dataclasses.asdict(result),
        "added": sum(file.added for file in patch.files),
        "removed": sum(file.removed for file in patch.files),
        "upstream_status": patch.fields["Upstream-Status"],
        "drop_when": patch.fields["Drop-When"],
        "stale": is_stale,
    }


def _list_patch(source_name: str, report: dict[str, Any], *, full: bool) -> tuple[str, ...]:
    """Return the row of one patch."""
    advice = "stale: run `build.py patches refresh`" if report["stale"] else ""
    outcome = (report["outcome"], report["detail"] or advice)
    if not full:
        return (source_name, report["name"], *outcome)
    size = f"+{report['added']} -{report['removed']}"
    status = report["upstream_status"].split(" [")[0]
    return (source_name, report["name"], size, status, *outcome)


def _list_overlaid(source_name: str, result: OverlayResult, *, full: bool) -> tuple[str, ...]:
    """Return the row of one overlaid file, which has neither a size nor an upstream status."""
    empty_cells = ("", "") if full else ()
    return (source_name, f"overlay {result.path}", *empty_cells, result.outcome, result.detail)


def _refresh(
    source_access: Access, sources: Sequence[GitSource | WheelSource], *, dry_run: bool
) -> Result:
    """Rewrite the stale patches, or with `dry_run` only list them."""
    data: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    ok = True
    action = "stale" if dry_run else "rewritten"
    for source, pinned in _acquire_sources(source_access, sources):
        stale_patches, survey = patch_refresh.find_stale_patches(
            pinned, patch_series.load_patches(source.patches)
        )
        for patch in stale_patches:
            if not dry_run:
                write_atomic(patch.file, patch.raw)
            rows.append((source.name, patch.name, action, ""))
        failed = [result for result in survey.results if result.outcome != "applied"]
        rows += [(source.name, result.name, result.outcome, result.detail) for result in failed]
        ok &= not failed and not (dry_run and stale_patches)
        data[source.name] = {
            action: [patch.name for patch in stale_patches],
            "failed": [dataclasses.asdict(result) for result in failed],
        }
    text = _format_table(rows) or "all patches are as git writes them"
    return Result({"sources": data}, text, ok=ok)


def _import(source_access: Access, loaded: Manifest, arguments: argparse.Namespace) -> Result:
    """Make a patch from a commit."""
    if not arguments.source and len(loaded.sources) != 1:
        raise UserError("is needed", "--source", f"one of: {', '.join(loaded.sources)}")
    source = loaded.source(arguments.source or next(iter(loaded.sources)))
    pinned, clone = patch_import.join_clone(
        acquire_source(source, source_access), arguments.repo and arguments.repo.absolute()
    )
    commit = patch_import.resolve_commit(pinned.git, clone, arguments.ref)
    planned = patch_import.plan_import(
        pinned,
        source.patches,
        commit,
        name=arguments.name,
        subject=arguments.subject,
        fields=_read_field_options(arguments),
        replaces=arguments.replace,
    )
    if not arguments.dry_run:
        for file, content in planned.files:
            write_atomic(file, content)
    files = [str(file) for file, _ in planned.files]
    data = {
        "source": source.name,
        "name": planned.name,
        "commit": commit,
        "files": files,
        "written": not arguments.dry_run,
        "failing": [dataclasses.asdict(result) for result in planned.failing],
    }
    action = "would write" if arguments.dry_run else "wrote"
    lines = [f"{source.name}: {planned.name} from {commit}: {action} {', '.join(files)}"]
    lines += [
        f"still to repair: {result.name} is {result.outcome}: {result.detail}"
        for result in planned.failing
    ]
    return Result(data, "\n".join(lines))


def _read_field_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the fields of the patch that the options set."""
    options = {
        "Why": arguments.why,
        "Upstream-Status": arguments.status,
        "Drop-When": arguments.drop_when,
    }
    return {key: value.strip() for key, value in options.items() if value}


def _format_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Align the columns of a table."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
