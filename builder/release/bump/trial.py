"""What the stack comes to on one commit of upstream's, with everything allowed that a refresh may
do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.release.bump import upstreamed_patches
from builder.upstream import patch_refresh, patched_source
from builder.upstream.source import Pinned
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.upstreamed_patches import Signals
    from builder.upstream.overlay import OverlayFile, OverlayResult
    from builder.upstream.patch_diagnosis import PatchResult
    from builder.upstream.patch_file import Patch

Outcome = Literal[
    "applies", "refreshed", "reworked", "taken", "conflict", "gone", "renamed", "empty"
]
FINE = ("applies", "refreshed")


@dataclass(frozen=True)
class Stack:
    """What stands on a source. `files` is the overlay."""

    patches: tuple[Patch, ...]
    files: tuple[OverlayFile, ...]

    @property
    def paths(self) -> list[str]:
        """Every path of upstream's that decides what becomes of it."""
        return sorted(
            {file.path for patch in self.patches for file in patch.files}
            | {file.path for file in self.files}
        )


@dataclass(frozen=True)
class Verdict:
    """What became of one patch.

    `refreshed`: the same lines are added and removed, elsewhere or among other lines; `reworked`: a
    merge left other lines than the patch had; `taken`: upstream has the change. `exact` says that a
    build goes on as it is. `added` and `removed` count what is left of a patch that was put in.
    """

    name: str
    outcome: Outcome
    exact: bool
    detail: str
    added: int
    removed: int
    signals: Signals | None = None


@dataclass(frozen=True)
class Trial:
    """`problem` is set where the stack breaks a rule on this commit: nothing else is known then."""

    commit: str
    verdicts: tuple[Verdict, ...] = ()
    overlaid: tuple[OverlayResult, ...] = ()
    problem: str = ""

    def passes(self, *, accept: bool) -> bool:
        """Whether a pin may stand here; with `accept` also at the price of dropped and reworked
        patches.
        """
        fine = all(
            verdict.exact or (accept and verdict.outcome in ("reworked", "taken"))
            for verdict in self.verdicts
        )
        return (
            fine
            and not self.problem
            and all(laid.outcome in ("applied", "upstream") for laid in self.overlaid)
        )

    def verdict(self, name: str) -> Verdict | None:
        return next((verdict for verdict in self.verdicts if verdict.name == name), None)

    def holds(self, name: str) -> bool:
        """Whether a patch is in as it is meant."""
        found = self.verdict(name)
        return found is not None and found.outcome in FINE


def at(upstream: Upstream, source: GitSource, commit: str, on: Stack, *, explain: bool) -> Trial:
    """Try the stack on `commit`.

    With `explain`, what fails says why, and whether upstream took it: that reads history.
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
        found = patched_source.survey(pinned, on.patches, on.files, merge=True)
        fresh = patch_refresh.fresh(pinned, found)
    except UserError as error:
        return Trial(commit, problem=f"{error.where}: {error.what}")
    before, steps = tree, {step.patch.name: step for step in found.steps}
    verdicts = []
    for patch, result in zip(on.patches, found.results, strict=True):
        signals = None
        if explain and not (result.outcome == "applied" and same_change(patch, fresh[patch.name])):
            signals = upstreamed_patches.signals(upstream, source.commit, commit, before, patch)
        verdicts.append(_verdict(patch, result, fresh.get(patch.name), signals))
        before = steps[patch.name].after if patch.name in steps else before
    return Trial(commit, tuple(verdicts), found.overlaid)


def _verdict(
    patch: Patch, result: PatchResult, fresh: Patch | None, signals: Signals | None
) -> Verdict:
    def verdict(outcome: Outcome, detail: str, *, exact: bool) -> Verdict:
        left = fresh or patch
        added, removed = (
            sum(getattr(file, side) for file in left.files) for side in ("added", "removed")
        )
        return Verdict(patch.name, outcome, exact, detail, added, removed, signals)

    if fresh:
        if fresh.raw == patch.raw:
            return verdict("applies", "", exact=True)
        if same_change(patch, fresh):
            return verdict("refreshed", result.detail or "its lines moved", exact=True)
        return verdict("reworked", "a three-way merge leaves other lines of it", exact=False)
    if result.outcome == "upstream" or (signals and signals.taken):
        return verdict("taken", result.detail, exact=result.sound)
    if result.outcome in ("conflict", "gone", "renamed", "empty"):
        return verdict(result.outcome, result.detail, exact=False)
    raise AssertionError(result.outcome)


def same_change(old: Patch, new: Patch) -> bool:
    """Whether both add and remove the same lines in the same order, wherever they stand."""
    return _change(old) == _change(new)


def _change(patch: Patch) -> Sequence[tuple[str, list[tuple[str, bytes]]]]:
    return [
        (file.path, [one for hunk in file.hunks for one in hunk.body if one[0] != " "])
        for file in sorted(patch.files, key=lambda file: file.path)
    ]
