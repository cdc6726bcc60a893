"""Where an upstream stands today, and its history from the pin to there; or the one thing that is
wrong with it.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from builder.upstream import git_server, local_mirror, tracked_branch
from builder.upstream.git import Git
from builder.upstream.source import check
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.core.manifest import GitSource
    from builder.upstream.local_mirror import Mirror
    from builder.upstream.source import Access

Kind = Literal["unreachable", "branch-lost", "rewritten", "tag-moved", "unreadable"]


@dataclass(frozen=True)
class Finding:
    """Why a pin cannot follow its branch, and what a person can do."""

    kind: Kind
    what: str
    do: str


@dataclass(frozen=True)
class Upstream:
    """`tip` is where the branch stands; `git` sees all commits before it; by `access` each of them
    can be acquired.
    """

    git: Git
    tip: str
    access: Access


@contextlib.contextmanager
def opened(source: GitSource, access: Access, target: str = "") -> Iterator[Upstream | Finding]:
    """Yield the upstream of a source for as long as it is looked at. With `target`, that commit
    stands for the branch's own.

    Raises UserError only for what is wrong in the manifest.
    """
    check(source, access)
    found = _objects(source, access, target)
    if isinstance(found, Finding):
        yield found
        return
    tip, clone, tag = found
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
        git = Git(Path(folder), alternates=(clone.objects,))
        git.init()
        wrong = _wrong(
            git, source, tip, clone, moved_tag=tag and not target and tip != source.commit
        )
        yield wrong or Upstream(git, tip, replace(access, mirrors=(*access.mirrors, clone.path)))


def _objects(source: GitSource, access: Access, target: str) -> tuple[str, Mirror, bool] | Finding:
    """Return the tip, a clone that has it, and whether a tag said so."""
    where = f"source {source.name}"
    own = access.cache.path("git", f"{source.name}+history.git")
    clones = [
        clone
        for root in (*access.mirrors, own)
        if root.is_dir()
        for clone in local_mirror.mirrors(root, local_mirror.word_of(source.git))
    ]
    if target and (
        clone := next((clone for clone in clones if tracked_branch.has(clone, target)), None)
    ):
        return target, clone, False
    branch = source.track.removeprefix("refs/heads/")
    try:
        tip, served = (target, None) if target else tracked_branch.stands(source, access)
        if served:
            return tip, served, local_mirror.ref(served, f"refs/heads/{branch}") is None
        if access.offline:
            raise git_server.UnreachableError(
                f"nothing at hand has {tip}, and --offline forbids asking {source.git}",
                where,
                "give --mirror DIR",
            )
        _fetch(source, access, tip)
    except git_server.UnreachableError as error:
        return _lost(source, _branches_of_mirrors(source, access)) or Finding(
            "unreachable", error.what, error.do
        )
    except UserError as error:  # the clones were looked through above: what is left is the branch
        return _lost(source, _branches_of_server(source, access)) or Finding(
            "branch-lost", error.what, error.do
        )
    return (
        tip,
        next(local_mirror.mirrors(own, "")),
        not target and branch not in _branches_of_server(source, access),
    )


def _fetch(source: GitSource, access: Access, tip: str) -> None:
    """All history up to `tip` into a repository of its own; what it has from before is not sent
    again.
    """
    with access.cache.lock(f"git-{source.name}+history"):
        folder = access.cache.ensure_folder(
            "git", f"{source.name}+history.git", lambda folder: Git(folder).init(), grows=True
        )
        git = Git(folder, protocols=":".join(access.protocols))
        if git.run(
            "rev-parse", "--verify", "--quiet", f"refs/rosetta/tips/{tip}", check=False
        ).returncode:
            git_server.fetch_branch(git, source.git, tip, where=f"source {source.name}")
            git.run("update-ref", f"refs/rosetta/tips/{tip}", tip)


def _branches_of_mirrors(source: GitSource, access: Access) -> dict[str, str]:
    word = local_mirror.word_of(source.git)
    found: dict[str, str] = {}
    for root in access.mirrors:
        for clone in local_mirror.mirrors(root, word):
            if word in local_mirror.words(clone.path, root):
                with tempfile.TemporaryDirectory() as folder:
                    git = Git(Path(folder), alternates=(clone.objects,))
                    git.init()
                    found |= {
                        name: sha
                        for name, sha in local_mirror.branches(clone).items()
                        if git_server.holds(git, sha, source.commit)
                    }
    return found


def _branches_of_server(source: GitSource, access: Access) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        git = Git(Path(folder), protocols=":".join(access.protocols))
        git.init()
        with contextlib.suppress(git_server.UnreachableError):
            return git_server.branches(git, source.git, f"source {source.name}")
    return {}


def _lost(source: GitSource, branches: Mapping[str, str]) -> Finding | None:
    """Return the finding for a branch that is gone while others are there: named are up to five
    that may be its new name.
    """
    if not branches or source.track in branches:
        return None
    likely = sorted(
        branches,
        key=lambda name: (name not in ("main", "master"), branches[name] != source.commit, name),
    )[:5]
    what = f"the branch {source.track} is gone (deleted or renamed); there are: {', '.join(likely)}"
    return Finding(
        "branch-lost",
        what,
        f"set `track` of {source.name} in the manifest to the one that follows it",
    )


def _wrong(
    git: Git, source: GitSource, tip: str, clone: Mirror, *, moved_tag: bool
) -> Finding | None:
    pin, name = source.commit, source.track
    if moved_tag:
        return Finding(
            "tag-moved",
            f"the tag {name} was moved from {pin} to {tip}",
            "see why, then set the commit in the manifest by hand",
        )
    if not all(_there(git, commit) for commit in (tip, pin)):
        cut = (clone.path / "shallow").exists() or not _there(git, tip)
        what = f"the history from {pin} to {tip} is not at hand"
        if cut:
            return Finding("unreadable", what, "give a --mirror with a complete clone")
        return Finding(
            "rewritten",
            f"{name} stands at {tip} and its history knows no {pin}: force-pushed",
            _LOOK,
        )
    status = git.run("merge-base", "--is-ancestor", pin, tip, check=False).returncode
    if status == 0:
        return None
    if status != 1:
        return Finding(
            "unreadable",
            f"the history from {pin} to {tip} is not at hand",
            "give a --mirror with a complete clone",
        )
    if git_server.holds(git, pin, tip):
        return Finding(
            "rewritten",
            f"{name} was moved back to {tip}, which lies before the pin {pin}",
            "see why; if it is only an old mirror, renew it",
        )
    fork = git.run("merge-base", pin, tip, check=False).stdout.decode().strip()
    since = f"they part at {fork}" if fork else "they have nothing in common"
    return Finding(
        "rewritten",
        f"{name} stands at {tip}, which does not hold the pin {pin}: force-pushed; {since}",
        _LOOK,
    )


_LOOK = "see what upstream threw away, then set the commit in the manifest by hand"


def _there(git: Git, commit: str) -> bool:
    return git.run("cat-file", "-e", f"{commit}^{{commit}}", check=False).returncode == 0
