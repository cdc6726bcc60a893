"""Open an upstream with its history from a pin to its tip, or say why that is not possible."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.upstream import git_server, local_mirror, tracked_branch
from builder.upstream.git import Git
from builder.upstream.source import check_pin
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.core.manifest import GitSource
    from builder.upstream.local_mirror import Mirror
    from builder.upstream.source import Access

Kind = Literal["unreachable", "branch-lost", "rewritten", "tag-moved", "unreadable"]
_SET_COMMIT = "see what upstream threw away, then set the commit in the manifest by hand"
_MAX_BRANCHES_SHOWN = 5


@dataclass(frozen=True)
class BranchProblem:
    """Why a pin cannot follow its branch, and what to do about it."""

    kind: Kind
    what: str
    do: str


@dataclass(frozen=True)
class Upstream:
    """An upstream at the tip of its branch.

    Attributes:
        git: A repository with all commits up to the tip.
        tip: The commit at the tip.
        access: Where each of these commits can be fetched from.
    """

    git: Git
    tip: str
    access: Access


@dataclass(frozen=True)
class _Tip:
    """The tip of a branch, a clone that has it, and whether the manifest tracks a tag."""

    commit: str
    clone: Mirror
    is_tag: bool


@contextlib.contextmanager
def open_upstream(
    source: GitSource, access: Access, target: str = ""
) -> Iterator[Upstream | BranchProblem]:
    """Yield the upstream of a source, or why its pin cannot follow its branch.

    Args:
        source: The source at its present pin.
        access: Where the source can be fetched from.
        target: A commit to use in place of the tip of the branch.

    Raises:
        UserError: the manifest has an error.
    """
    check_pin(source, access)
    tip = _locate_tip(source, access, target)
    if isinstance(tip, BranchProblem):
        yield tip
        return
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
        git = Git(Path(folder), alternates=(tip.clone.objects,))
        git.init()
        if tip.is_tag and not target and tip.commit != source.commit:
            yield BranchProblem(
                "tag-moved",
                f"the tag {source.track} was moved from {source.commit} to {tip.commit}",
                "find out why, then set the commit in the manifest by hand",
            )
            return
        mirrors = (*access.mirrors, tip.clone.path)
        yield _check_history(git, source, tip) or Upstream(
            git, tip.commit, replace(access, mirrors=mirrors)
        )


def _locate_tip(source: GitSource, access: Access, target: str) -> _Tip | BranchProblem:
    """Find the tip of the branch, and a clone that has it. The history is fetched if need be."""
    own_clone = access.cache.path("git", f"{source.name}+history.git")
    if target:
        for root in (*access.mirrors, own_clone):
            for clone in _list_clones(root, local_mirror.repository_name(source.git)):
                if tracked_branch.has_commit(clone, target):
                    return _Tip(target, clone, is_tag=False)
    branch = source.track.removeprefix("refs/heads/")
    try:
        tip, served = (target, None) if target else tracked_branch.find_tip(source, access)
        if served:
            is_tag = local_mirror.read_ref(served, f"refs/heads/{branch}") is None
            return _Tip(tip, served, is_tag)
        if access.offline:
            raise git_server.UnreachableError(
                f"no mirror has {tip}, and --offline forbids asking {source.git}",
                f"source {source.name}",
                "give --mirror DIR",
            )
        _fetch_history(source, access, tip)
    except git_server.UnreachableError as error:
        branches = _list_branches_of_mirrors(source, access)
        return _describe_lost_branch(source, branches) or BranchProblem(
            "unreachable", error.what, error.do
        )
    except UserError as error:  # the mirrors have no such branch, and neither has the server
        branches = _list_branches_of_server(source, access)
        return _describe_lost_branch(source, branches) or BranchProblem(
            "branch-lost", error.what, error.do
        )
    is_tag = not target and branch not in _list_branches_of_server(source, access)
    return _Tip(tip, next(local_mirror.find_mirrors(own_clone, "")), is_tag)


def _list_clones(root: Path, word: str) -> Iterator[Mirror]:
    if root.is_dir():
        yield from local_mirror.find_mirrors(root, word)


def _fetch_history(source: GitSource, access: Access, tip: str) -> None:
    """Fetch all history up to `tip` into a repository in the cache, from where it ended before."""
    with access.cache.lock(f"git-{source.name}+history"):
        folder = access.cache.ensure_folder(
            "git", f"{source.name}+history.git", lambda folder: Git(folder).init(), grows=True
        )
        git = Git(folder, protocols=":".join(access.protocols))
        tip_ref = f"refs/rosetta/tips/{tip}"
        if git.run("rev-parse", "--verify", "--quiet", tip_ref, check=False).returncode:
            git_server.fetch_branch(git, source.git, tip, where=f"source {source.name}")
            git.run("update-ref", tip_ref, tip)


def _list_branches_of_mirrors(source: GitSource, access: Access) -> dict[str, str]:
    """Return the branches that contain the pin, with their tips, of all mirrors of a source."""
    word = local_mirror.repository_name(source.git)
    branches: dict[str, str] = {}
    for root in access.mirrors:
        for clone in local_mirror.find_mirrors(root, word):
            if word not in local_mirror.path_words(clone.path, root):
                continue
            with tempfile.TemporaryDirectory() as folder:
                git = Git(Path(folder), alternates=(clone.objects,))
                git.init()
                branches |= {
                    name: tip
                    for name, tip in local_mirror.read_branches(clone).items()
                    if git_server.contains_commit(git, tip, source.commit)
                }
    return branches


def _list_branches_of_server(source: GitSource, access: Access) -> dict[str, str]:
    """Return the branches of the server with their tips; none if the server does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        git = Git(Path(folder), protocols=":".join(access.protocols))
        git.init()
        with contextlib.suppress(git_server.UnreachableError):
            return git_server.list_branches(git, source.git, f"source {source.name}")
    return {}


def _describe_lost_branch(source: GitSource, branches: Mapping[str, str]) -> BranchProblem | None:
    """Return the problem that a branch is gone, with branches that may be its new name.

    Returns:
        None if the branch exists, or if there are no branches at all.
    """
    if not branches or source.track in branches:
        return None

    def likelihood(name: str) -> tuple[bool, bool, str]:
        return name not in ("main", "master"), branches[name] != source.commit, name

    likely = sorted(branches, key=likelihood)[:_MAX_BRANCHES_SHOWN]
    return BranchProblem(
        "branch-lost",
        f"the branch {source.track} was deleted or renamed; upstream has: {', '.join(likely)}",
        f"set `track` of {source.name} in the manifest to the branch that replaces it",
    )


def _check_history(git: Git, source: GitSource, tip: _Tip) -> BranchProblem | None:
    """Return why the tip of a branch does not descend from the pin, or None if it does."""
    pin, name = source.commit, source.track
    no_history = f"the history from {pin} to {tip.commit} is not complete"
    complete_clone = "give a --mirror with a complete clone"
    if not _has_commit(git, tip.commit) or not _has_commit(git, pin):
        is_cut_off = (tip.clone.path / "shallow").exists() or not _has_commit(git, tip.commit)
        if is_cut_off:
            return BranchProblem("unreadable", no_history, complete_clone)
        return BranchProblem(
            "rewritten",
            f"{name} was force-pushed: its history up to {tip.commit} does not have {pin}",
            _SET_COMMIT,
        )
    status = git.run("merge-base", "--is-ancestor", pin, tip.commit, check=False).returncode
    if status == 0:
        return None
    if status != 1:
        return BranchProblem("unreadable", no_history, complete_clone)
    if git_server.contains_commit(git, pin, tip.commit):
        return BranchProblem(
            "rewritten",
            f"{name} was moved back to {tip.commit}, which is older than the pin {pin}",
            "find out why; if the mirror is old, update it",
        )
    fork = git.run("merge-base", pin, tip.commit, check=False).stdout.decode().strip()
    relation = f"they diverge at {fork}" if fork else "they have no common commit"
    return BranchProblem(
        "rewritten",
        f"{name} was force-pushed to {tip.commit}, which does not contain the pin {pin}; "
        f"{relation}",
        _SET_COMMIT,
    )


def _has_commit(git: Git, commit: str) -> bool:
    return git.run("cat-file", "-e", f"{commit}^{{commit}}", check=False).returncode == 0
