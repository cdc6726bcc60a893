"""What a bump finds for one source, and what it would write: nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.release.bump import branch_state, trial
from builder.release.bump.breaking_commit import History
from builder.release.bump.trial import Stack
from builder.upstream import overlay, patch_refresh, patch_series, patched_source
from builder.upstream.source import acquire
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import Finding, Upstream
    from builder.release.bump.breaking_commit import Culprit
    from builder.release.bump.trial import Trial, Verdict
    from builder.upstream.breakage_search import Cause
    from builder.upstream.patch_file import Patch
    from builder.upstream.source import Access

Proposal = Literal["drop", "refresh"]


@dataclass(frozen=True)
class PatchReport:
    """One patch at the tip; `proposal` is what a person (or --accept) may decide, apart from what
    is mechanical.
    """

    verdict: Verdict
    culprit: Culprit | None
    proposal: Proposal | None


@dataclass(frozen=True)
class Writes:
    """The new pin and the files that go with it (None: the file goes away), with the names of the
    patches in them.
    """

    pin: str
    files: Mapping[Path, bytes | None]
    refreshed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """One source: `good` is the newest commit at which the stack stands, None where there is none;
    `log` is upstream's since the pin, newest first.
    """

    source: GitSource
    tip: str = ""
    finding: Finding | None = None
    tried: Trial | None = None
    patches: tuple[PatchReport, ...] = ()
    log: tuple[Cause, ...] = ()
    days: int = 0
    good: str | None = None
    writes: Writes | None = None

    @property
    def pin(self) -> str:
        """Where the pin stands once the writes are made."""
        return self.writes.pin if self.writes else self.source.commit

    @property
    def ok(self) -> bool:
        """Nothing is wrong with the branch, and the stack stands at its tip."""
        return self.finding is None and self.good == self.tip


def examine(
    source: GitSource,
    access: Access,
    *,
    accept: bool = False,
    tip_only: bool = False,
    target: str = "",
) -> Report:
    """Try a source's stack at the tip of its branch (or at `target`), find what broke it, and how
    far the pin can go.

    Args:
        source: the source at its present pin.
        access: where it may be had from.
        accept: also drop patches that upstream has and take merges that leave other lines.
        tip_only: plan no writes unless the stack stands at the tip.
        target: a commit in place of the branch's tip.

    Raises:
        UserError: a patch or an overlay breaks a rule that can be told without upstream.
    """
    on = Stack(patch_series.load(source.patches), overlay.load(source.overlay))
    with branch_state.opened(source, access, target) as upstream:
        if isinstance(upstream, branch_state.Finding):
            return Report(source, finding=upstream)
        history = History(upstream, source, on, accept=accept)
        good = history.newest_good()
        patches = tuple(_reported(history, verdict) for verdict in history.tip.verdicts)
        days = _days(upstream, source.commit)
        found = Report(
            source, upstream.tip, None, history.tip, patches, tuple(history.commits), days, good
        )
        if good is None or (tip_only and good != upstream.tip):
            return found
        try:
            return replace(
                found,
                writes=_writes(source, upstream, history.trial(good), on.patches, accept=accept),
            )
        except UserError as error:
            finding = branch_state.Finding(
                "unreadable", f"{good}: {error.where}: {error.what}", error.do
            )
            return replace(found, finding=finding)


def _reported(history: History, verdict: Verdict) -> PatchReport:
    proposals: dict[str, Proposal] = {"taken": "drop", "reworked": "refresh"}
    culprit = None if verdict.outcome in trial.FINE else history.culprit(verdict.name)
    return PatchReport(verdict, culprit, proposals.get(verdict.outcome))


def _days(upstream: Upstream, pin: str) -> int:
    tip, old = (
        int(
            upstream.git.text(
                "log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", commit
            )
        )
        for commit in (upstream.tip, pin)
    )
    return (tip - old) // 86400


def _writes(
    source: GitSource, upstream: Upstream, tried: Trial, patches: Sequence[Patch], *, accept: bool
) -> Writes | None:
    """Return what has to change for the pin to stand at `tried`: proven without merging, on objects
    that were verified.
    """
    pinned = acquire(replace(source, commit=tried.commit), upstream.access)
    dropped = tuple(
        verdict.name for verdict in tried.verdicts if accept and verdict.outcome == "taken"
    )
    kept = [patch for patch in patches if patch.name not in dropped]
    better, _ = patch_refresh.stale(pinned, kept)
    fresh = {patch.name: patch for patch in better}
    final = patched_source.survey(
        pinned, [fresh.get(patch.name, patch) for patch in kept], overlay.load(source.overlay)
    )
    for result in final.results:
        if not result.sound:
            raise UserError(
                f"the refreshed patch is {result.outcome}: {result.detail}",
                result.name,
                "see docs/how-to/update-pins.md",
            )
    files: dict[Path, bytes | None] = {patch.file: patch.raw for patch in better}
    if dropped:
        files[source.patches / "series"] = _without(
            patch_series.read_text(source.patches / "series"), dropped
        )
        files |= {source.patches / f"{name}.patch": None for name in dropped}
    if tried.commit == source.commit and not files:
        return None
    return Writes(tried.commit, files, tuple(fresh), dropped)


def _without(text: str, names: Sequence[str]) -> bytes:
    return "".join(
        line for line in text.splitlines(keepends=True) if line.split("#")[0].strip() not in names
    ).encode()
