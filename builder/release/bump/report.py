"""A bump's findings as JSON and as lines that a person can act on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.release.bump.lock_records import Changes
    from builder.release.bump.plan import PatchReport, Report

_NEXT = (
    "repair them under patches/ and overlay/ (docs/how-to/update-pins.md), then run build.py bump "
    "--continue; or run build.py bump --abort"
)


def data(report: Report, shown: int) -> dict[str, Any]:
    """One source for --json."""
    tried = report.tried
    return {
        "tracks": report.source.track,
        "from": report.source.commit,
        "tip": report.tip or None,
        "pin": report.pin,
        "applies_up_to": report.good,
        "ok": report.ok,
        "commits": len(report.log),
        "days": report.days,
        "finding": dataclasses.asdict(report.finding) if report.finding else None,
        "problem": (tried.problem if tried else "") or None,
        "patches": [_patch(one) for one in report.patches],
        "overlay": [dataclasses.asdict(laid) for laid in tried.overlaid] if tried else [],
        "mechanical": {"refreshed": list(report.writes.refreshed) if report.writes else []},
        "proposed": [
            {"patch": one.verdict.name, "do": one.proposal}
            for one in report.patches
            if one.proposal
        ],
        "dropped": list(report.writes.dropped) if report.writes else [],
        "log": [dataclasses.asdict(one) for one in report.log[:shown]],
    }


def _patch(one: PatchReport) -> dict[str, Any]:
    verdict, signals = one.verdict, one.verdict.signals
    said = (
        None
        if signals is None
        else {**dataclasses.asdict(signals), "taken": signals.taken, "partly": signals.partly}
    )
    return {
        "name": verdict.name,
        "outcome": verdict.outcome,
        "detail": verdict.detail,
        "builds": verdict.exact,
        "culprit": dataclasses.asdict(one.culprit) if one.culprit else None,
        "signals": said,
        "proposal": one.proposal,
    }


def text(reports: Sequence[Report], shown: int, changes: Changes, *, forecast: bool) -> str:
    """Everything for a terminal."""
    lines: list[str] = []
    for report in reports:
        lines += [*_source(report, forecast=forecast), *_log(report, shown)]
    proposed = [
        f"  {report.source.name}: {_proposal(one)}"
        for report in reports
        for one in report.patches
        if one.proposal and not _made(report, one)
    ]
    if proposed:
        lines += ["proposed, not made (`--accept` does it; look at each first):", *proposed]
    lines += _pins(reports) if not forecast else []
    lines += _locks(changes)
    blocked = [report.source.name for report in reports if report.finding is None and not report.ok]
    if blocked and not forecast:
        lines.append(f"not at the tip: {', '.join(blocked)}; {_NEXT}")
    return "\n".join(lines)


def _made(report: Report, one: PatchReport) -> bool:
    names = (*report.writes.dropped, *report.writes.refreshed) if report.writes else ()
    return one.verdict.name in names


def _source(report: Report, *, forecast: bool) -> list[str]:
    name = report.source.name
    if report.finding:
        return [f"{name}: {report.finding.kind}: {report.finding.what} -> {report.finding.do}"]
    behind = (
        f"{count(len(report.log), 'commit')} and {count(report.days, 'day')} since "
        f"{report.source.commit[:12]}"
    )
    if report.tip == report.source.commit:
        head = f"{name}: at the tip {report.tip[:12]}"
    elif forecast:
        head = f"{name}: the tip {report.tip[:12]} is {behind}"
    elif report.ok:
        head = f"{name}: moved to the tip {report.tip[:12]}, {behind}"
    elif report.pin != report.source.commit:
        head = (
            f"{name}: moved to {report.pin[:12]}, the newest commit with which the stack applies; "
            f"the tip {report.tip[:12]} is {behind}"
        )
    else:
        head = f"{name}: not moved; the tip {report.tip[:12]} is {behind}"
    lines = [head]
    if (forecast or report.pin != report.good) and not report.ok:
        lines.append(
            f"  the stack applies up to {report.good}"
            if report.good
            else "  the stack does not apply at the pin either"
        )
    if report.tried and report.tried.problem:
        lines.append(f"  {report.tried.problem}")
    for one in report.patches:
        lines += _lines_of(one)
    for laid in report.tried.overlaid if report.tried else ():
        if laid.outcome != "applied":
            lines.append(f"  {laid.outcome:<10}overlay {laid.path}: {laid.detail}")
    return lines


def _lines_of(one: PatchReport) -> list[str]:
    verdict = one.verdict
    lines = [
        f"  {verdict.outcome:<10}{verdict.name}" + (f": {verdict.detail}" if verdict.detail else "")
    ]
    if one.culprit:
        lines.append(
            f"            {'taken' if verdict.outcome == 'taken' else 'broken'} by {one.culprit}"
        )
    if verdict.signals and (said := str(verdict.signals)):
        lines.append(f"            {'partly upstream: ' if verdict.signals.partly else ''}{said}")
    return lines


def _proposal(one: PatchReport) -> str:
    if one.proposal == "drop":
        sure = (
            "the build goes on without it already"
            if one.verdict.exact
            else "upstream has it in another form"
        )
        return f"drop {one.verdict.name} ({sure})"
    return (
        f"refresh {one.verdict.name} to what a merge leaves of it (+{one.verdict.added} "
        f"-{one.verdict.removed})"
    )


def _log(report: Report, shown: int) -> list[str]:
    if not report.log or not shown:
        return []
    lines = [f"  upstream since {report.source.commit[:12]}:"]
    lines += [
        f"    {one.commit[:12]} {one.date} {one.author}: {one.subject}"
        for one in report.log[:shown]
    ]
    left = len(report.log) - shown
    return [
        *lines,
        *([f"    and {left} more (--log {len(report.log)} shows them)"] if left > 0 else []),
    ]


def _pins(reports: Iterable[Report]) -> list[str]:
    lines = []
    for report in reports:
        if report.writes:
            lines += (
                [
                    f"-{report.source.name}: {report.source.commit}",
                    f"+{report.source.name}: {report.pin}",
                ]
                if report.pin != report.source.commit
                else []
            )
            lines += [
                f" {report.source.name}: rewritten {name}" for name in report.writes.refreshed
            ]
            lines += [f" {report.source.name}: dropped {name}" for name in report.writes.dropped]
    return ["manifest.yaml and patches:", *(f"  {line}" for line in lines)] if lines else []


def _locks(changes: Changes) -> list[str]:
    lines = []
    for path, diff in changes.files.items():
        lines += [f"{path}:", *(f"  {line}" for line in diff)]
    if changes.problem:
        lines.append(f"locks: not renewed: {changes.problem}")
    if changes.lines:
        lines.append(
            f"locks: what upstream asks for changed: run build.py lock {' '.join(changes.lines)}"
        )
    return lines


def count(number: int, unit: str, several: str = "") -> str:
    """Return a number and what it counts, in good English."""
    return f"{number} {unit if number == 1 else several or f'{unit}s'}"


def summary(reports: Iterable[Report]) -> Mapping[str, str]:
    """In one word for each source: at-tip, moved, part-way, held or the kind of its finding."""
    words = {}
    for report in reports:
        moved = report.pin != report.source.commit
        if report.finding:
            word = str(report.finding.kind)
        elif report.ok:
            word = "moved" if moved else "at-tip"
        else:
            word = "part-way" if moved else "held"
        words[report.source.name] = word
    return words
