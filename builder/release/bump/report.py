"""The report of a bump, as JSON and as text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from builder.release.counted_nouns import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.release.bump.lock_records import LockChanges
    from builder.release.bump.plan import PatchReport, SourceReport

_NEXT_STEP = (
    "repair them under patches/ and overlay/ (docs/how-to/update-pins.md), then run build.py bump "
    "--continue; or run build.py bump --abort"
)
_INDENT = " " * 12  # the details of a patch start below its name


def source_as_json(report: SourceReport, commits_shown: int) -> dict[str, Any]:
    """Return the report of one source for `--json`.

    Args:
        report: The report.
        commits_shown: How many of the upstream commits since the pin to show.
    """
    trial, problem, writes = report.tip_trial, report.branch_problem, report.writes
    return {
        "tracks": report.source.track,
        "from": report.source.commit,
        "tip": report.tip or None,
        "pin": report.pin,
        "applies_up_to": report.newest_usable,
        "ok": report.ok,
        "commits": len(report.commits),
        "days": report.days,
        "finding": dataclasses.asdict(problem) if problem else None,
        "problem": (trial.problem or None) if trial else None,
        "patches": [_patch_as_json(patch) for patch in report.patches],
        "overlay": [dataclasses.asdict(result) for result in trial.overlaid] if trial else [],
        "mechanical": {"refreshed": list(writes.refreshed) if writes else []},
        "proposed": [
            {"patch": patch.verdict.name, "do": patch.proposal}
            for patch in report.patches
            if patch.proposal
        ],
        "dropped": list(writes.dropped) if writes else [],
        "log": [dataclasses.asdict(commit) for commit in report.commits[:commits_shown]],
    }


def _patch_as_json(patch: PatchReport) -> dict[str, Any]:
    verdict = patch.verdict
    return {
        "name": verdict.name,
        "outcome": verdict.outcome,
        "detail": verdict.detail,
        "builds": verdict.is_buildable,
        "culprit": dataclasses.asdict(patch.culprit) if patch.culprit else None,
        "signals": verdict.signals.as_json() if verdict.signals else None,
        "proposal": patch.proposal,
    }


def report_as_text(
    reports: Sequence[SourceReport], commits_shown: int, changes: LockChanges, *, forecast: bool
) -> str:
    """Return the report of all sources for a terminal.

    Args:
        reports: The report of each source.
        commits_shown: How many of the upstream commits since each pin to show.
        changes: What changed in the lock of the sources.
        forecast: Whether nothing was written.
    """
    lines: list[str] = []
    for report in reports:
        lines += _source_lines(report, forecast=forecast)
        lines += _commit_lines(report, commits_shown)
    lines += _proposal_lines(reports)
    if not forecast:
        lines += _written_lines(reports)
    lines += _lock_lines(changes)
    blocked = [
        report.source.name for report in reports if not report.branch_problem and not report.ok
    ]
    if blocked and not forecast:
        lines.append(f"not at the tip: {', '.join(blocked)}; {_NEXT_STEP}")
    return "\n".join(lines)


def _source_lines(report: SourceReport, *, forecast: bool) -> list[str]:
    name, problem = report.source.name, report.branch_problem
    if problem:
        return [f"{name}: {problem.kind}: {problem.what}; {problem.do}"]
    lines = [f"{name}: {_describe_move(report, forecast=forecast)}"]
    if (forecast or report.pin != report.newest_usable) and not report.ok:
        if report.newest_usable:
            lines.append(f"  patches and overlay apply up to {report.newest_usable}")
        else:
            lines.append("  patches and overlay do not apply at the pin either")
    for patch in report.patches:
        lines += _patch_lines(patch)
    if report.tip_trial:
        if report.tip_trial.problem:
            lines.append(f"  {report.tip_trial.problem}")
        lines += [
            f"  {result.outcome:<10}overlay {result.path}: {result.detail}"
            for result in report.tip_trial.overlaid
            if result.outcome != "applied"
        ]
    return lines


def _describe_move(report: SourceReport, *, forecast: bool) -> str:
    """Return how far the pin was moved, or would be."""
    tip = report.tip[:12]
    distance = (
        f"{format_count(len(report.commits), 'commit')} and {format_count(report.days, 'day')} "
        f"after {report.source.commit[:12]}"
    )
    if report.tip == report.source.commit:
        return f"at the tip {tip}"
    if forecast:
        return f"the tip {tip} is {distance}"
    if report.ok:
        return f"moved to the tip {tip}, {distance}"
    if report.pin != report.source.commit:
        return (
            f"moved to {report.pin[:12]}, the newest commit at which patches and overlay apply; "
            f"the tip {tip} is {distance}"
        )
    return f"not moved; the tip {tip} is {distance}"


def _patch_lines(patch: PatchReport) -> list[str]:
    verdict = patch.verdict
    line = f"  {verdict.outcome:<10}{verdict.name}"
    lines = [f"{line}: {verdict.detail}" if verdict.detail else line]
    if patch.culprit:
        verb = "taken" if verdict.outcome == "taken" else "broken"
        lines.append(f"{_INDENT}{verb} by {patch.culprit}")
    signals = str(verdict.signals or "")
    if verdict.signals and signals:
        prefix = "partly upstream: " if verdict.signals.is_partly_taken else ""
        lines.append(f"{_INDENT}{prefix}{signals}")
    return lines


def _commit_lines(report: SourceReport, commits_shown: int) -> list[str]:
    """Return the newest upstream commits since the pin."""
    if not report.commits or not commits_shown:
        return []
    lines = [f"  upstream since {report.source.commit[:12]}:"]
    lines += [
        f"    {commit.commit[:12]} {commit.date} {commit.author}: {commit.subject}"
        for commit in report.commits[:commits_shown]
    ]
    more = len(report.commits) - commits_shown
    if more > 0:
        lines.append(f"    and {more} more (--log {len(report.commits)} shows them)")
    return lines


def _proposal_lines(reports: Iterable[SourceReport]) -> list[str]:
    """Return the proposals that were not carried out."""
    lines = []
    for report in reports:
        writes = report.writes
        changed = (*writes.dropped, *writes.refreshed) if writes else ()
        lines += [
            f"  {report.source.name}: {_describe_proposal(patch)}"
            for patch in report.patches
            if patch.proposal and patch.verdict.name not in changed
        ]
    if not lines:
        return []
    return ["proposals (--accept carries them out; review each of them first):", *lines]


def _describe_proposal(patch: PatchReport) -> str:
    verdict = patch.verdict
    if patch.proposal == "drop":
        if verdict.is_buildable:
            return f"drop {verdict.name} (a build already leaves it out)"
        return f"drop {verdict.name} (upstream has it in another form)"
    size = f"+{verdict.added} -{verdict.removed}"
    return f"refresh {verdict.name} to the result of a merge ({size})"


def _written_lines(reports: Iterable[SourceReport]) -> list[str]:
    """Return what was written to the manifest and the patches."""
    lines = []
    for report in reports:
        name, writes = report.source.name, report.writes
        if writes and writes.pin != report.source.commit:
            lines += [f"  -{name}: {report.source.commit}", f"  +{name}: {writes.pin}"]
        if writes:
            lines += [f"   {name}: rewritten {patch}" for patch in writes.refreshed]
            lines += [f"   {name}: dropped {patch}" for patch in writes.dropped]
    return ["manifest.yaml and patches:", *lines] if lines else []


def _lock_lines(changes: LockChanges) -> list[str]:
    lines = []
    for path, difference in changes.files.items():
        lines += [f"{path}:", *(f"  {line}" for line in difference)]
    if changes.problem:
        lines.append(f"locks: not updated: {changes.problem}")
    if changes.lines:
        lines.append(
            "locks: the requirements of upstream changed: "
            f"run build.py lock {' '.join(changes.lines)}"
        )
    return lines


def summarize_sources(reports: Iterable[SourceReport]) -> Mapping[str, str]:
    """Return one word for each source.

    The word is at-tip, moved, part-way, held, or the kind of the problem of its branch.
    """
    return {report.source.name: _summarize_source(report) for report in reports}


def _summarize_source(report: SourceReport) -> str:
    if report.branch_problem:
        return report.branch_problem.kind
    is_moved = report.pin != report.source.commit
    if report.ok:
        return "moved" if is_moved else "at-tip"
    return "part-way" if is_moved else "held"
