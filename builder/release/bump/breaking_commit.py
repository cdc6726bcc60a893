"""From which commit on the stack no longer stands: found by applying it along upstream's
first-parent history.

Only commits that change a path of the stack can change what becomes of it. The newest of them are
tried one after the other, so that a change that went to and fro is seen; what lies further back is
halved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.release.bump import trial, upstreamed_patches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.trial import Stack, Trial
    from builder.upstream.breakage_search import Cause

_ONE_BY_ONE = 24


@dataclass(frozen=True)
class Culprit:
    """The commit of upstream's after which a patch was no longer in; `merge` is the one that
    brought it to the branch, if one did.
    """

    by: Cause
    merge: Cause | None = None

    def __str__(self) -> str:
        return f"{self.by}, merged by {self.merge.commit[:12]}" if self.merge else str(self.by)


class History:
    """The way from a pin to the tip, on which each commit is tried at most once."""

    def __init__(self, upstream: Upstream, source: GitSource, on: Stack, *, accept: bool) -> None:
        self._upstream, self._source, self._on, self._accept = upstream, source, on, accept
        self._tried: dict[str, Trial] = {}
        self.commits = upstreamed_patches.log(
            upstream.git, "--first-parent", f"{source.commit}..{upstream.tip}"
        )
        self.tip = trial.at(upstream, source, upstream.tip, on, explain=True)

    def trial(self, commit: str) -> Trial:
        if commit == self._upstream.tip:
            return self.tip
        if commit not in self._tried:
            self._tried[commit] = trial.at(
                self._upstream, self._source, commit, self._on, explain=self._accept
            )
        return self._tried[commit]

    def newest_good(self) -> str | None:
        """Return the newest commit at which the stack stands; None if it does not even at the
        pin.
        """
        states = self._states(self._upstream.tip, self._source.commit, self._on.paths)
        self._tried[states[0]] = self.tip  # nothing of the stack changed since
        index = _newest(states, lambda commit: self.trial(commit).passes(accept=self._accept))
        if not index:
            return None if index is None else self._upstream.tip
        chain = [one.commit for one in self.commits] + [self._source.commit]
        return chain[chain.index(states[index - 1]) + 1]

    def culprit(self, name: str) -> Culprit | None:
        """Return the commit that took a patch out; None if it is in, or was not in at the pin
        either.
        """
        paths = self._paths(name)
        found = self._between(self._upstream.tip, self._source.commit, name, paths)
        if found is None:
            return None
        by = upstreamed_patches.cause_of(self._upstream.git, found)
        parents = self._upstream.git.text(
            "log", "-1", "--no-show-signature", "--format=%P", "--end-of-options", found
        ).split()
        if len(parents) > 1 and (inner := self._between(parents[1], parents[0], name, paths)):
            return Culprit(upstreamed_patches.cause_of(self._upstream.git, inner), by)
        return Culprit(by)

    def _paths(self, name: str) -> list[str]:
        """Return the paths of a patch, and of those before it that it may build on."""
        names = [patch.name for patch in self._on.patches]
        patches = self._on.patches[: names.index(name) + 1]
        own = {file.path for file in patches[-1].files}
        return sorted(
            own
            | {
                file.path
                for patch in patches
                for file in patch.files
                if own & {one.path for one in patch.files}
            }
        )

    def _between(self, newest: str, oldest: str, name: str, paths: Sequence[str]) -> str | None:
        states = self._states(newest, oldest, paths)
        index = _newest(states, lambda commit: self.trial(commit).holds(name))
        return states[index - 1] if index else None

    def _states(self, newest: str, oldest: str, paths: Sequence[str]) -> list[str]:
        """Return the commits that changed one of the paths, newest first, then `oldest`: one for
        each state that the paths were in.
        """
        changing = (
            upstreamed_patches.log(
                self._upstream.git, "--first-parent", f"{oldest}..{newest}", paths=paths
            )
            if paths
            else []
        )
        return [one.commit for one in changing] + [oldest]


def _newest(states: Sequence[str], good: Callable[[str], bool]) -> int | None:
    """Return the place of the newest good state; beyond the first ones, of a good one whose newer
    neighbour is bad.
    """
    for index, state in enumerate(states[:_ONE_BY_ONE]):
        if good(state):
            return index
    bad, known = _ONE_BY_ONE - 1, len(states) - 1
    if known <= bad or not good(states[known]):
        return None
    while known - bad > 1:
        middle = (bad + known) // 2
        if good(states[middle]):
            known = middle
        else:
            bad = middle
    return known
