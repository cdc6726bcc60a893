"""What a bisect found, as JSON and as lines for a person."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.upstream import patch_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.release.bisect.changes import Between, Unit
    from builder.release.bisect.journal import Journal
    from builder.release.bisect.repository import Repository
    from builder.upstream.breakage_search import Cause


@dataclasses.dataclass(frozen=True)
class Culprits:
    """What it takes, the last change first; several in a group could not be told apart. `merges`
    are by the place of the group.

    `alone` is whether they were seen to be bad without the rest of what differs; `span` are the
    revisions that both ends are, if they are.
    """

    between: Between
    groups: tuple[tuple[Unit, ...], ...]
    merges: Mapping[int, Cause]
    alone: bool
    span: tuple[str, str] | None
    ours: Repository | None
    ends: tuple[str, str]

    @property
    def certain(self) -> bool:
        """Whether every group of suspects holds a single commit, patch or package."""
        return self.alone and all(len(group) == 1 for group in self.groups)


def data(found: Culprits, journal: Journal) -> dict[str, Any]:
    """For --json."""
    request = journal.request
    return {
        "good": request.good,
        "bad": request.bad,
        "distribution": found.between.good.distribution,
        "accelerator": found.between.good.accelerator,
        "stage": request.stage,
        "command": list(request.command),
        "between": list(found.ends),
        "candidates": len(found.between.units),
        "builds": journal.count,
        "pair": len(found.groups) == 2,
        "alone": found.alone,
        "certain": found.certain,
        "culprits": [
            [_unit(unit, found, found.merges.get(number)) for unit in group]
            for number, group in enumerate(found.groups)
        ],
        "skipped": [
            {"what": trial.what, "why": trial.why}
            for trial in journal.trials
            if trial.answer == "skip"
        ],
        "notes": list(found.between.notes),
    }


def _unit(unit: Unit, found: Culprits, merge: Cause | None) -> dict[str, Any]:
    by = unit.step.cause if unit.step else _ours(unit, found)
    return {
        "kind": unit.kind,
        "source": unit.place or None,
        "name": unit.name,
        "what": unit.what,
        **({} if by is None else dataclasses.asdict(by)),
        "back": bool(unit.step and unit.step.back),
        "merged_by": merge.commit if merge else None,
        "files": _files(unit, found),
    }


def _path(unit: Unit, found: Culprits) -> str:
    """Return the file of ours that a change stands in, from the manifest's folder."""
    build = found.between.bad
    if unit.kind == "patch":
        return f"patches/{unit.place}/{unit.name or 'series'}{'.patch' if unit.name else ''}"
    if unit.kind == "overlay":
        return f"overlay/{unit.place}/{unit.name}"
    if unit.kind == "package":
        return f"locks/{build.distribution}-{build.accelerator}.txt"
    return "locks/build.txt" if unit.kind == "tools" else "manifest.yaml"


def _ours(unit: Unit, found: Culprits) -> Cause | None:
    """Our own commit that made a change, where both ends are revisions."""
    if found.ours is None or found.span is None:
        return None
    touched = [f"-G^{unit.name}=="] if unit.kind == "package" else []
    return next(
        iter(
            found.ours.log(
                *touched, f"{found.span[0]}..{found.span[1]}", paths=[_path(unit, found)]
            )
        ),
        None,
    )


def _files(unit: Unit, found: Culprits) -> list[str]:
    if unit.kind == "rosetta" and unit.step and found.ours:
        return found.ours.files(unit.step.cause.commit)
    if unit.kind == "commit" and unit.step:
        return found.between.ways[unit.place].files(unit.step)
    if unit.kind == "patch" and unit.name:
        versions = [
            raw
            for side in (found.between.good, found.between.bad)
            for part in side.parts
            if part.name == unit.place
            for raw in dict(part.patches).get(unit.name, ())
        ]
        return sorted(
            {
                file.path
                for raw in versions
                for file in patch_file.parse(Path(f"{unit.name}.patch"), raw).files
            }
        )
    return [unit.name] if unit.kind == "overlay" else [_path(unit, found)]


def text(report: Mapping[str, Any]) -> str:
    """For a terminal."""
    groups: Sequence[Sequence[Mapping[str, Any]]] = report["culprits"]
    several = {1: "it is", 2: "it is a pair, neither of them without the other:"}.get(
        len(groups), f"it takes {len(groups)} changes together:"
    )
    lines = [f"{several} (between {report['between'][0]} and {report['between'][1]})"]
    for group in groups:
        lines += ["  one of these, which could not be told apart:"] if len(group) > 1 else []
        for unit in group:
            lines.append(f"  {unit['source'] + ': ' if unit['source'] else ''}{unit['what']}")
            if "commit" in unit and unit["commit"] != unit["name"]:
                lines.append(
                    f"      by {unit['commit'][:12]} ({unit['author']}, {unit['date']}, "
                    f"{unit['subject']!r})"
                )
            lines += [f"      merged by {unit['merged_by'][:12]}"] if unit["merged_by"] else []
            lines += [f"      {path}" for path in unit["files"]] if len(group) == 1 else []
    if not report["alone"]:
        lines.append(
            "with nothing but this it could not be tried: something else may be needed as well"
        )
    lines += [f"skipped: {each['what']}: {each['why']}" for each in report["skipped"]]
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(
        [*lines, f"{report['candidates']} changes, {report['builds']} builds beside the two ends"]
    )
