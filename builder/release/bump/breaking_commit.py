"""Find the upstream commit that broke a patch, by trying commits of the branch.

Only commits that change a path of the patches or the overlay can matter. The newest ones are tried
one after the other, so that a change that upstream made and reverted is noticed. Older commits are
bisected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.release.bump.commit_log import list_commits, read_commit, read_parents
from builder.release.bump.commit_trial import try_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.core.manifest import GitSource
    from builder.release.bump.branch_state import Upstream
    from builder.release.bump.commit_trial import CommitTrial, SourceFiles
    from builder.upstream.breakage_search import Cause

_TRIED_ONE_BY_ONE = 24


@dataclass(frozen=True)
class Culprit:
    """The upstream commit after which a patch no longer applied.

    Attributes:
        by: The commit.
        merge: The merge that brought the commit to the branch, if there was one.
    """

    by: Cause
    merge: Cause | None = None

    def __str__(self) -> str:
        return f"{self.by}, merged by {self.merge.commit[:12]}" if self.merge else str(self.by)


class BranchTrials:
    """The commits from the pin of a source to the tip of its branch. Each is tried at most once.

    Args:
        upstream: The upstream.
        source: The source at its present pin.
        files: The patches and the overlay of the source.
        accept: Whether patches may be dropped if upstream has them, and replaced by a merge.
    """

    def __init__(
        self, upstream: Upstream, source: GitSource, files: SourceFiles, *, accept: bool
    ) -> None:
        self._upstream = upstream
        self._source = source
        self._files = files
        self._accept = accept
        self._trials: dict[str, CommitTrial] = {}
        self.commits = list_commits(
            upstream.git, "--first-parent", f"{source.commit}..{upstream.tip}"
        )
        self.tip = try_commit(upstream, source, upstream.tip, files, explain=True)

    def try_commit(self, commit: str) -> CommitTrial:
        """Return what became of the patches and the overlay on a commit."""
        if commit == self._upstream.tip:
            return self.tip
        if commit not in self._trials:
            self._trials[commit] = try_commit(
                self._upstream, self._source, commit, self._files, explain=self._accept
            )
        return self._trials[commit]

    def find_newest_usable(self) -> str | None:
        """Return the newest commit that the pin may be set to, or None if there is none."""
        states = self._list_states(self._upstream.tip, self._source.commit, self._files.paths)
        self._trials[states[0]] = self.tip  # no path of the patches changed after this commit
        index = _find_newest(
            states, lambda commit: self.try_commit(commit).is_usable(accept=self._accept)
        )
        if index is None:
            return None
        if index == 0:
            return self._upstream.tip
        # The commit before the next change of a path is newer than the state itself.
        branch = [*(commit.commit for commit in self.commits), self._source.commit]
        return branch[branch.index(states[index - 1]) + 1]

    def find_culprit(self, name: str) -> Culprit | None:
        """Return the commit after which a patch no longer applied.

        Returns:
            None if the patch applies at the tip, or did not apply at the pin either.
        """
        paths = self._paths_of_patch(name)
        commit = self._find_breaking_commit(self._upstream.tip, self._source.commit, name, paths)
        if commit is None:
            return None
        culprit = read_commit(self._upstream.git, commit)
        parents = read_parents(self._upstream.git, commit)
        if len(parents) > 1:
            merged = self._find_breaking_commit(parents[1], parents[0], name, paths)
            if merged:
                return Culprit(read_commit(self._upstream.git, merged), merge=culprit)
        return Culprit(culprit)

    def _paths_of_patch(self, name: str) -> list[str]:
        """Return the paths of a patch, and of the earlier patches that change one of its files."""
        names = [patch.name for patch in self._files.patches]
        patches = self._files.patches[: names.index(name) + 1]
        own_paths = {file.path for file in patches[-1].files}
        paths = set(own_paths)
        for patch in patches:
            patch_paths = {file.path for file in patch.files}
            if own_paths & patch_paths:
                paths |= patch_paths
        return sorted(paths)

    def _find_breaking_commit(
        self, newest: str, oldest: str, name: str, paths: Sequence[str]
    ) -> str | None:
        states = self._list_states(newest, oldest, paths)
        index = _find_newest(states, lambda commit: self.try_commit(commit).applies(name))
        return states[index - 1] if index else None

    def _list_states(self, newest: str, oldest: str, paths: Sequence[str]) -> list[str]:
        """Return a commit for each state that some paths were in, newest first.

        These are the commits that changed one of the paths, and `oldest`.
        """
        commits = []
        if paths:
            commits = list_commits(
                self._upstream.git, "--first-parent", f"{oldest}..{newest}", paths=paths
            )
        return [*(commit.commit for commit in commits), oldest]


def _find_newest(states: Sequence[str], is_good: Callable[[str], bool]) -> int | None:
    """Return the position of the newest good state, or None if there is none.

    Among the older states, which are bisected, this is a good state whose newer neighbour is bad.
    """
    for index, state in enumerate(states[:_TRIED_ONE_BY_ONE]):
        if is_good(state):
            return index
    bad, good = _TRIED_ONE_BY_ONE - 1, len(states) - 1
    if good <= bad or not is_good(states[good]):
        return None
    while good - bad > 1:
        middle = (bad + good) // 2
        if is_good(states[middle]):
            good = middle
        else:
            bad = middle
    return good
