"""Examine one source for a bump, and plan which files the bump would change.

The functions of this module do not change the checkout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.release.bump import branch_state
from builder.release.bump.breaking_commit import BranchTrials
from builder.release.bump.commit_log import read_commit_time
from builder.release.bump.commit_trial import APPLYING_OUTCOMES, SourceFiles
from builder.upstream import overlay, patch_refresh, patch_series, patched_source
from builder.upstream.source import acquire_source
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import BranchProblem, Upstream
    from builder.release.bump.breaking_commit import Culprit
    from builder.release.bump.commit_trial import CommitTrial, PatchVerdict
    from builder.upstream.breakage_search import Cause
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access

Proposal = Literal["drop", "refresh"]
_SECONDS_PER_DAY = 86400


@dataclass(frozen=True)
class PatchReport:
    """One patch at the tip of the branch.

    Attributes:
        verdict: What became of the patch.
        culprit: The upstream commit after which the patch no longer applied, or None if it still
            applies or if no such commit was found.
        proposal: "drop" if upstream has the change, "refresh" if a merge can replace the patch,
            otherwise None. A maintainer may follow the proposal, and `--accept` does.
    """

    verdict: PatchVerdict
    culprit: Culprit | None
    proposal: Proposal | None


@dataclass(frozen=True)
class PlannedWrites:
    """What a bump would write for one source.

    Attributes:
        pin: The new pin.
        files: The new content of each file, or None if the file is deleted.
        refreshed: The names of the patches that are rewritten.
        dropped: The names of the patches that are deleted.
    """

    pin: str
    files: Mapping[Path, bytes | None]
    refreshed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceReport:
    """How far the pin of one source can move, and what becomes of its patches.

    Attributes:
        source: The source at its present pin.
        tip: The commit at the tip of the branch.
        branch_problem: Why the pin cannot follow its branch, or None. Attributes that could not be
            found out have their default.
        tip_trial: What became of the patches and the overlay at the tip.
        patches: What became of each patch at the tip.
        commits: The upstream commits since the pin, newest first.
        days: The whole days between the commit times of the pin and of the tip.
        newest_usable: The newest commit that the pin may be set to, or None if there is none.
        writes: What a bump would write, or None if it would write nothing.
    """

    source: GitSource
    tip: str = ""
    branch_problem: BranchProblem | None = None
    tip_trial: CommitTrial | None = None
    patches: tuple[PatchReport, ...] = ()
    commits: tuple[Cause, ...] = ()
    days: int = 0
    newest_usable: str | None = None
    writes: PlannedWrites | None = None

    @property
    def pin(self) -> str:
        """The pin that the source would have after the bump."""
        return self.writes.pin if self.writes else self.source.commit

    @property
    def ok(self) -> bool:
        """Whether the pin may be set to the tip of the branch."""
        return self.branch_problem is None and self.newest_usable == self.tip


def examine_source(
    source: GitSource,
    access: Access,
    *,
    accept: bool = False,
    tip_only: bool = False,
    target: str = "",
) -> SourceReport:
    """Try the patches of a source at the tip of its branch, and find how far its pin can move.

    Args:
        source: The source at its present pin.
        access: Where the source can be fetched from.
        accept: Whether to drop patches that upstream has, and to replace patches by the result of
            a three-way merge.
        tip_only: Whether to plan no writes unless everything applies at the tip.
        target: A commit to use in place of the tip of the branch.

    Raises:
        UserError: a patch or an overlay is not valid.
    """
    files = SourceFiles(
        patch_series.load_patches(source.patches), overlay.load_overlay(source.overlay)
    )
    with branch_state.open_upstream(source, access, target) as upstream:
        if isinstance(upstream, branch_state.BranchProblem):
            return SourceReport(source, branch_problem=upstream)
        trials = BranchTrials(upstream, source, files, accept=accept)
        newest_usable = trials.find_newest_usable()
        report = SourceReport(
            source,
            upstream.tip,
            tip_trial=trials.tip,
            patches=tuple(_report_patch(trials, verdict) for verdict in trials.tip.verdicts),
            commits=tuple(trials.commits),
            days=_days_between(upstream, source.commit),
            newest_usable=newest_usable,
        )
        if newest_usable is None or (tip_only and newest_usable != upstream.tip):
            return report
        try:
            trial = trials.try_commit(newest_usable)
            writes = _plan_writes(source, upstream, trial, files.patches, accept=accept)
        except UserError as error:  # a build could not use the sources at this commit
            what = f"{newest_usable}: {error.where}: {error.what}"
            problem = branch_state.BranchProblem("unreadable", what, error.do)
            return replace(report, branch_problem=problem)
        return replace(report, writes=writes)


def _report_patch(trials: BranchTrials, verdict: PatchVerdict) -> PatchReport:
    """Add to a verdict which commit caused it, and what can be done about it."""
    proposals: dict[str, Proposal] = {"taken": "drop", "reworked": "refresh"}
    culprit = None
    if verdict.outcome not in APPLYING_OUTCOMES:
        culprit = trials.find_culprit(verdict.name)
    return PatchReport(verdict, culprit, proposals.get(verdict.outcome))


def _days_between(upstream: Upstream, pin: str) -> int:
    """Return the whole days between the commit times of the pin and of the tip."""
    seconds = read_commit_time(upstream.git, upstream.tip) - read_commit_time(upstream.git, pin)
    return seconds // _SECONDS_PER_DAY


def _plan_writes(
    source: GitSource,
    upstream: Upstream,
    trial: CommitTrial,
    patches: Sequence[Patch],
    *,
    accept: bool,
) -> PlannedWrites | None:
    """Return what has to be written for the pin to move to the commit of a trial.

    The patches and the overlay are then applied as a build does it: without merging, to a source
    whose objects are verified.

    Returns:
        The planned writes, or None if there is nothing to write.

    Raises:
        UserError: a build could not apply the patches.
    """
    pinned = acquire_source(replace(source, commit=trial.commit), upstream.access)
    dropped = tuple(
        verdict.name for verdict in trial.verdicts if accept and verdict.outcome == "taken"
    )
    remaining = [patch for patch in patches if patch.name not in dropped]
    refreshed, _ = patch_refresh.find_stale_patches(pinned, remaining)
    refreshed_by_name = {patch.name: patch for patch in refreshed}
    new_series = [refreshed_by_name.get(patch.name, patch) for patch in remaining]
    overlaid_files = overlay.load_overlay(source.overlay)
    survey = patched_source.survey_patches(pinned, new_series, overlaid_files)
    for result in survey.results:
        if not result.sound:
            raise UserError(
                f"the patch does not apply after the refresh: {result.outcome}: {result.detail}",
                result.name,
                "see docs/how-to/update-pins.md",
            )
    files: dict[Path, bytes | None] = {patch.file: patch.raw for patch in refreshed}
    if dropped:
        series_file = source.patches / "series"
        files[series_file] = _remove_from_series(patch_series.read_text(series_file), dropped)
        files |= {source.patches / f"{name}.patch": None for name in dropped}
    if trial.commit == source.commit and not files:
        return None
    return PlannedWrites(trial.commit, files, tuple(refreshed_by_name), dropped)


def _remove_from_series(text: str, names: Sequence[str]) -> bytes:
    """Return the content of a series file without some patches. Comment lines are kept.

    Args:
        text: The content of the series file.
        names: The names of the patches to remove.
    """
    remaining_lines = []
    for line in text.splitlines(keepends=True):
        name = line.split("#")[0].strip()
        if name not in names:
            remaining_lines.append(line)
    return "".join(remaining_lines).encode()
