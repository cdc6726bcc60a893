"""The commits of an upstream between two pins, whichever of the two is newer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.manifest import GitSource
from builder.release.bisect import repository
from builder.release.bump import branch_state, upstreamed_patches

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping
    from pathlib import Path

    from builder.upstream.breakage_search import Cause
    from builder.upstream.git import Git
    from builder.upstream.source import Access


@dataclass(frozen=True)
class Step:
    """One commit on the way; `state` is the commit that a pin stands on once the step is made,
    `back` whether the step takes `cause` away.
    """

    state: str
    cause: Cause
    back: bool = False


@dataclass(frozen=True)
class Way:
    """From one pin to the other.

    Without steps, `why` it cannot be split; `git` sees all of it, `access` gives each commit of it.
    """

    steps: tuple[Step, ...]
    why: str = ""
    git: Git | None = None
    access: Access | None = None

    def merged(self, step: Step) -> list[Step]:
        """Return the commits that a step brought by a merge, oldest first, the step itself last;
        none where it is no merge of two.
        """
        if self.git is None or step.back:
            return []
        parents = self.git.text(
            "log", "-1", "--no-show-signature", "--format=%P", "--end-of-options", step.cause.commit
        ).split()
        if len(parents) != 2:
            return []
        inner = upstreamed_patches.log(self.git, "--first-parent", f"{parents[0]}..{parents[1]}")
        return [*(Step(one.commit, one) for one in reversed(inner)), step]

    def files(self, step: Step) -> list[str]:
        """Return what the commit of a step changed."""
        return repository.changed(self.git, step.cause.commit) if self.git else []


def way(
    name: str,
    good: Mapping[str, Any],
    bad: Mapping[str, Any],
    patches: Path,
    access: Access,
    stack: contextlib.ExitStack,
) -> Way:
    """From the pin of one entry of the manifest to that of another, which must be of one git URL;
    what is opened for it closes with `stack`.
    """
    ends = [
        GitSource(name, each["git"], each["track"], each["commit"], patches, None, ())
        for each in (good, bad)
    ]
    whys = []
    for old, new, back in ((ends[0], ends[1], False), (ends[1], ends[0], True)):
        upstream = stack.enter_context(branch_state.opened(old, access, new.commit))
        if isinstance(upstream, branch_state.Finding):
            whys.append(upstream.what)
            continue
        log = upstreamed_patches.log(upstream.git, "--first-parent", f"{old.commit}..{new.commit}")
        if back:
            states = [*(one.commit for one in log[1:]), old.commit]
            steps = tuple(
                Step(state, one, back=True) for state, one in zip(states, log, strict=True)
            )
        else:
            steps = tuple(Step(one.commit, one) for one in reversed(log))
        return Way(steps, "", upstream.git, upstream.access)
    return Way((), whys[0])
