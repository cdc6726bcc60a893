"""The report of a bisect, as JSON and as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.pipeline.step_plans import figures
from builder.upstream import patch_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.release.bisect.changes import Change, ChangeList
    from builder.release.bisect.journal import Journal
    from builder.release.bisect.repository import Repository
    from builder.upstream.breakage_search import Cause


@dataclasses.dataclass(frozen=True)
class Culprits:
    """The changes that make a build bad.

    Attributes:
        change_list: All changes that were tried.
        groups: The changes that are needed, one group for each, the last change first. The changes
            of a group could not be told apart.
        merges: The merge that brought a culprit, by the position of its group.
        alone: Whether a build with only these changes was bad.
        revisions: The good and the bad revision, if both ends are revisions of this repository.
        checkout: The repository that the manifest is in, if it is in one.
        ends: The good and the bad end in words.
    """

    change_list: ChangeList
    groups: tuple[tuple[Change, ...], ...]
    merges: Mapping[int, Cause]
    alone: bool
    revisions: tuple[str, str] | None
    checkout: Repository | None
    ends: tuple[str, str]

    @property
    def certain(self) -> bool:
        """Whether every group has a single change, and these changes alone are bad."""
        return self.alone and all(len(group) == 1 for group in self.groups)


def report_as_json(culprits: Culprits, journal: Journal) -> dict[str, Any]:
    """Return the report for `--json`."""
    request = journal.request
    return {
        "good": request.good,
        "bad": request.bad,
        "distribution": culprits.change_list.good.distribution,
        "accelerator": culprits.change_list.good.accelerator,
        "stage": request.stage,
        "command": list(request.command),
        "metric": _metric_as_json(journal),
        "between": list(culprits.ends),
        "candidates": len(culprits.change_list.changes),
        "builds": journal.build_count,
        "pair": len(culprits.groups) == 2,
        "alone": culprits.alone,
        "certain": culprits.certain,
        "culprits": [
            [_change_as_json(change, culprits, culprits.merges.get(number)) for change in group]
            for number, group in enumerate(culprits.groups)
        ],
        "skipped": [
            {"what": trial.description, "why": trial.reason}
            for trial in journal.trials
            if trial.answer == "skip"
        ],
        "notes": list(culprits.change_list.notes),
    }


def _metric_as_json(journal: Journal) -> dict[str, Any] | None:
    """Return the figure that was compared, and what it is at both ends; None without a metric."""
    if not journal.request.metric:
        return None
    good, bad = (trial.figure for trial in journal.trials if trial.is_end)
    return {"figure": journal.request.metric, "good": good, "bad": bad}


def _change_as_json(change: Change, culprits: Culprits, merge: Cause | None) -> dict[str, Any]:
    commit = change.step.cause if change.step else _find_own_commit(change, culprits)
    return {
        "kind": change.kind,
        "source": change.source or None,
        "name": change.name,
        "what": change.description,
        **(dataclasses.asdict(commit) if commit else {}),
        "back": bool(change.step and change.step.is_undone),
        "merged_by": merge.commit if merge else None,
        "files": _list_files(change, culprits),
    }


def _path_in_checkout(change: Change, culprits: Culprits) -> str:
    """Return the path of the file that a change is in, from the manifest's folder."""
    build = culprits.change_list.bad
    if change.kind == "patch":
        file_name = f"{change.name}.patch" if change.name else "series"
        return f"patches/{change.source}/{file_name}"
    if change.kind == "overlay":
        return f"overlay/{change.source}/{change.name}"
    if change.kind == "package":
        return f"locks/{build.distribution}-{build.accelerator}.txt"
    return "locks/build.txt" if change.kind == "tools" else "manifest.yaml"


def _find_own_commit(change: Change, culprits: Culprits) -> Cause | None:
    """Return the commit of this repository that made a change, if both ends are revisions."""
    if culprits.checkout is None or culprits.revisions is None:
        return None
    older, newer = culprits.revisions
    options = [f"-G^{change.name}=="] if change.kind == "package" else []
    commits = culprits.checkout.log(
        *options, f"{older}..{newer}", paths=[_path_in_checkout(change, culprits)]
    )
    return commits[0] if commits else None


def _list_files(change: Change, culprits: Culprits) -> list[str]:
    """Return the files that a change concerns."""
    if change.kind == "rosetta" and change.step and culprits.checkout:
        return culprits.checkout.changed_paths(change.step.cause.commit)
    if change.kind == "commit" and change.step:
        return culprits.change_list.histories[change.source].changed_files(change.step)
    if change.kind == "patch" and change.name:
        paths = set()
        for version in _patch_versions(change, culprits):
            patch = patch_file.parse_patch(Path(f"{change.name}.patch"), version)
            paths |= {file.path for file in patch.files}
        return sorted(paths)
    if change.kind == "overlay":
        return [change.name]
    return [_path_in_checkout(change, culprits)]


def _patch_versions(change: Change, culprits: Culprits) -> Iterator[bytes]:
    """Yield every version that both builds have of a patch."""
    for build in (culprits.change_list.good, culprits.change_list.bad):
        for source in build.sources:
            if source.name == change.source:
                yield from dict(source.patches).get(change.name, ())


def report_as_text(report: Mapping[str, Any]) -> str:
    """Return the report for a terminal.

    Args:
        report: What `report_as_json` returned.
    """
    good, bad = report["between"]
    groups: Sequence[Sequence[Mapping[str, Any]]] = report["culprits"]
    lines = [f"between {good} and {bad}, {_describe_count(len(groups))}"]
    for group in groups:
        lines += _group_lines(group)
    if metric := report["metric"]:
        move = figures.Move(metric["figure"], metric["good"], metric["bad"])
        lines += figures.format_moves([move])
    if not report["alone"]:
        lines.append("these changes alone could not be tried: another change may be needed as well")
    lines += [f"skipped: {skip['what']}: {skip['why']}" for skip in report["skipped"]]
    lines += [f"note: {note}" for note in report["notes"]]
    lines.append(f"{report['candidates']} changes, {report['builds']} builds beside the two ends")
    return "\n".join(lines)


def _describe_count(group_count: int) -> str:
    if group_count == 1:
        return "this change makes the build bad:"
    return f"{group_count} changes make the build bad only together:"


def _group_lines(group: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    if len(group) > 1:
        lines.append("  one of these, which could not be told apart:")
    for change in group:
        source = f"{change['source']}: " if change["source"] else ""
        lines.append(f"  {source}{change['what']}")
        if "commit" in change and change["commit"] != change["name"]:
            lines.append(
                f"      by {change['commit'][:12]} ({change['author']}, {change['date']}, "
                f"{change['subject']!r})"
            )
        if change["merged_by"]:
            lines.append(f"      merged by {change['merged_by'][:12]}")
        if len(group) == 1:
            lines += [f"      {path}" for path in change["files"]]
    return lines
