"""Try the patches and the overlay of a source on one commit of upstream.

Everything that `build.py patches refresh` may do is allowed, and three-way merges as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.release.bump import upstreamed_patches
from builder.upstream import patch_refresh, patched_source
from builder.upstream.source import Pinned
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.upstreamed_patches import UpstreamSignals
    from builder.upstream.overlay import OverlayFile, OverlayResult
    from builder.upstream.patch_diagnosis import PatchResult
    from builder.upstream.patch_file import Patch

Outcome = Literal[
    "applies", "refreshed", "reworked", "taken", "conflict", "gone", "renamed", "empty"
]
APPLYING_OUTCOMES = ("applies", "refreshed")


@dataclass(frozen=True)
class SourceFiles:
    """What is applied to a source: its patch series and its overlay."""

    patches: tuple[Patch, ...]
    overlay: tuple[OverlayFile, ...]

    @property
    def paths(self) -> list[str]:
        """The upstream paths that decide whether the patches and the overlay apply."""
        patched = {file.path for patch in self.patches for file in patch.files}
        return sorted(patched | {file.path for file in self.overlay})


@dataclass(frozen=True)
class PatchVerdict:
    """What became of one patch.

    Attributes:
        name: The name of the patch.
        outcome: "refreshed" means that the same lines are added and removed at other places;
            "reworked" that a merge adds or removes other lines than the patch; "taken" that
            upstream has the change.
        is_buildable: Whether a build accepts the patch as it is.
        detail: The outcome in words.
        added: How many lines the patch adds when it is applied.
        removed: How many lines the patch removes when it is applied.
        signals: The signs that upstream has the change, if they were looked for.
    """

    name: str
    outcome: Outcome
    is_buildable: bool
    detail: str
    added: int
    removed: int
    signals: UpstreamSignals | None = None


@dataclass(frozen=True)
class CommitTrial:
    """What became of all patches and overlaid files on one commit.

    Attributes:
        commit: The commit.
        verdicts: What became of each patch.
        overlaid: What became of each overlaid file.
        problem: The rule that the patches break on this commit. Nothing else is known then.
    """

    commit: str
    verdicts: tuple[PatchVerdict, ...] = ()
    overlaid: tuple[OverlayResult, ...] = ()
    problem: str = ""

    def is_usable(self, *, accept: bool) -> bool:
        """Return whether a pin may be set to this commit.

        Args:
            accept: Whether patches may be dropped if upstream has them, and replaced by a merge.
        """
        if self.problem or any(
            result.outcome not in ("applied", "upstream") for result in self.overlaid
        ):
            return False
        return all(
            verdict.is_buildable or (accept and verdict.outcome in ("reworked", "taken"))
            for verdict in self.verdicts
        )

    def applies(self, name: str) -> bool:
        """Return whether a patch makes its change on this commit."""
        return any(
            verdict.name == name and verdict.outcome in APPLYING_OUTCOMES
            for verdict in self.verdicts
        )


def try_commit(
    upstream: Upstream, source: GitSource, commit: str, files: SourceFiles, *, explain: bool
) -> CommitTrial:
    """Try the patches and the overlay of a source on one commit.

    Args:
        upstream: The upstream.
        source: The source at its present pin.
        commit: The commit to try.
        files: The patches and the overlay.
        explain: Whether to find out why a patch fails, and whether upstream has taken it. This
            reads history.
    """
    tree, date = upstream.git.text(
        "log", "-1", "--no-show-signature", "--format=%T %ct", "--end-of-options", commit
    ).split()
    pinned = Pinned(
        source.name,
        source.git,
        commit,
        tree,
        int(date),
        upstream.git,
        source.absent,
        "mirror",
        history=explain,
    )
    try:
        survey = patched_source.survey_patches(pinned, files.patches, files.overlay, merge=True)
        refreshed = patch_refresh.regenerate_patches(pinned, survey)
    except UserError as error:
        return CommitTrial(commit, problem=f"{error.where}: {error.what}")
    trees_after = {step.patch.name: step.after for step in survey.steps}
    verdicts = []
    for patch, result in zip(files.patches, survey.results, strict=True):
        new_patch = refreshed.get(patch.name)
        signals = None
        is_unchanged = (
            result.outcome == "applied"
            and new_patch is not None
            and has_same_changes(patch, new_patch)
        )
        if explain and not is_unchanged:
            signals = upstreamed_patches.compare_with_upstream(
                upstream, source.commit, commit, tree, patch
            )
        verdicts.append(_judge_patch(patch, result, new_patch, signals))
        tree = trees_after.get(patch.name, tree)
    return CommitTrial(commit, tuple(verdicts), survey.overlaid)


def _judge_patch(
    patch: Patch, result: PatchResult, refreshed: Patch | None, signals: UpstreamSignals | None
) -> PatchVerdict:
    outcome, detail, is_buildable = _choose_outcome(patch, result, refreshed, signals)
    files = (refreshed or patch).files
    return PatchVerdict(
        patch.name,
        outcome,
        is_buildable,
        detail,
        sum(file.added for file in files),
        sum(file.removed for file in files),
        signals,
    )


def _choose_outcome(
    patch: Patch, result: PatchResult, refreshed: Patch | None, signals: UpstreamSignals | None
) -> tuple[Outcome, str, bool]:
    """Return the outcome of a patch, its detail, and whether a build accepts the patch."""
    if refreshed:
        if refreshed.raw == patch.raw:
            return "applies", "", True
        if has_same_changes(patch, refreshed):
            return "refreshed", result.detail or "its lines moved", True
        return "reworked", "a three-way merge changes other lines than the patch", False
    if result.outcome == "upstream" or (signals and signals.is_taken):
        return "taken", result.detail, result.sound
    if result.outcome in ("conflict", "gone", "renamed", "empty"):
        return result.outcome, result.detail, False
    raise AssertionError(result.outcome)


def has_same_changes(old: Patch, new: Patch) -> bool:
    """Return whether two patches add and remove the same lines in the same order, at any place."""
    return _changed_lines(old) == _changed_lines(new)


def _changed_lines(patch: Patch) -> list[tuple[str, list[tuple[str, bytes]]]]:
    """Return the path of each file, and the lines that the patch adds to it and removes from it."""
    files = []
    for file in sorted(patch.files, key=lambda file: file.path):
        body = [row for hunk in file.hunks for row in hunk.body]
        files.append((file.path, [(sign, line) for sign, line in body if sign != " "]))
    return files
