"""The commits of an upstream between two pins, of which either may be the newer one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core.manifest import GitSource
from builder.release.bisect import repository
from builder.release.bump import branch_state
from builder.release.bump.commit_log import list_commits, read_parents

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping
    from pathlib import Path

    from builder.upstream.breakage_search import Cause
    from builder.upstream.git import Git
    from builder.upstream.source import Access


@dataclass(frozen=True)
class HistoryStep:
    """One step of the way from one pin to the other.

    Attributes:
        pin: The commit that a source is pinned to after the step.
        cause: The commit that the step adds or undoes.
        is_undone: Whether the step undoes `cause`, because the bad pin is older than the good one.
    """

    pin: str
    cause: Cause
    is_undone: bool = False


@dataclass(frozen=True)
class History:
    """The way from one pin to the other.

    Attributes:
        steps: The steps in order; empty if the commits between the pins could not be listed.
        reason: Why the commits could not be listed.
        git: A repository with all commits of the history.
        access: Where each commit of the history can be fetched from.
    """

    steps: tuple[HistoryStep, ...]
    reason: str = ""
    git: Git | None = None
    access: Access | None = None

    def merged_commits(self, step: HistoryStep) -> list[HistoryStep]:
        """Return the commits that a merge brought, oldest first, and the merge itself last.

        The list is empty if the step is not a merge of two commits.
        """
        if self.git is None or step.is_undone:
            return []
        parents = read_parents(self.git, step.cause.commit)
        if len(parents) != 2:
            return []
        branch = list_commits(self.git, "--first-parent", f"{parents[0]}..{parents[1]}")
        return [*(HistoryStep(commit.commit, commit) for commit in reversed(branch)), step]

    def changed_files(self, step: HistoryStep) -> list[str]:
        """Return the paths that the commit of a step changed."""
        return repository.changed_paths(self.git, step.cause.commit) if self.git else []


def read_history(
    name: str,
    good: Mapping[str, Any],
    bad: Mapping[str, Any],
    patches: Path,
    access: Access,
    stack: contextlib.ExitStack,
) -> History:
    """List the commits from the good pin of a source to the bad one.

    Args:
        name: The name of the source.
        good: The source's entry in the good manifest.
        bad: Its entry in the bad manifest, with the same git URL.
        patches: The folder of the source's patches, which is not read.
        access: Where the source can be fetched from.
        stack: Closes the repository of the history.
    """
    good_source, bad_source = (
        GitSource(name, entry["git"], entry["track"], entry["commit"], patches, None, ())
        for entry in (good, bad)
    )
    forwards = _read_range(good_source, bad_source, access, stack)
    if isinstance(forwards, History):
        return forwards
    backwards = _read_range(bad_source, good_source, access, stack, is_undone=True)
    return backwards if isinstance(backwards, History) else History((), forwards.what)


def _read_range(
    older: GitSource,
    newer: GitSource,
    access: Access,
    stack: contextlib.ExitStack,
    *,
    is_undone: bool = False,
) -> History | branch_state.BranchProblem:
    """List the commits from the older pin to the newer one, or from the newer back to the older.

    Returns:
        The history, or why the newer pin does not descend from the older one.
    """
    upstream = stack.enter_context(branch_state.open_upstream(older, access, newer.commit))
    if isinstance(upstream, branch_state.BranchProblem):
        return upstream
    commits = list_commits(upstream.git, "--first-parent", f"{older.commit}..{newer.commit}")
    if is_undone:
        pins = [*(commit.commit for commit in commits[1:]), older.commit]
        steps = [
            HistoryStep(pin, commit, is_undone=True)
            for pin, commit in zip(pins, commits, strict=True)
        ]
    else:
        steps = [HistoryStep(commit.commit, commit) for commit in reversed(commits)]
    return History(tuple(steps), "", upstream.git, upstream.access)
