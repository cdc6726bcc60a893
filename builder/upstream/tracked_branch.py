"""Find the tip of the branch that a source tracks, and check that the pin is on it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.upstream import git_server
from builder.upstream.git import Git
from builder.upstream.local_mirror import find_mirrors, path_words, read_ref, repository_name
from builder.upstream.source import check_pin
from rosetta.core.errors import CONFLICT, MISSING, UNREACHABLE, UserError

if TYPE_CHECKING:
    from builder.core.manifest import GitSource
    from builder.upstream.local_mirror import Mirror
    from builder.upstream.source import Access


def resolve_ref(source: GitSource, access: Access) -> str:
    """Return the current commit of the branch or tag that a source tracks.

    A mirror of the source is asked first, then the git server.

    Raises:
        UserError: The branch or tag does not exist.
        UnreachableError: The server does not answer, or --offline is set and no mirror knows.
    """
    return find_tip(source, access)[0]


def check_on_branch(source: GitSource, access: Access) -> None:
    """Check that the pinned commit is on the branch that a source tracks.

    Raises:
        UserError: The commit is not on the branch, or the branch does not exist.
        UnreachableError: The server does not answer, or --offline is set and no mirror knows.
    """
    tip, mirror = find_tip(source, access)
    if tip == source.commit:
        return
    with tempfile.TemporaryDirectory() as folder:
        if mirror:
            git = _open_mirror(Path(folder), mirror)
        else:
            git = Git(Path(folder), protocols=":".join(access.protocols))
            git.init()
            git_server.fetch_branch(
                git, source.git, tip, where=f"source {source.name}", without_trees=True
            )
        if git_server.contains_commit(git, tip, source.commit):
            return
    raise UserError(
        f"commit {source.commit} is not on {source.track}, which is at {tip} (force-pushed?)",
        f"source {source.name}",
        "move the pin, or correct `track` in the manifest",
        kind=CONFLICT,
        value=source.commit,
    )


def find_tip(source: GitSource, access: Access) -> tuple[str, Mirror | None]:
    """Return the commit of the tracked branch, and the mirror that has it (None for the server).

    Raises:
        UserError: The branch or tag does not exist.
        UnreachableError: The server does not answer, or --offline is set and no mirror knows.
    """
    check_pin(source, access)
    where = f"source {source.name}"
    project = repository_name(source.git)
    has_mirror = False
    for root in access.mirrors:
        for mirror in find_mirrors(root, project):
            if project in path_words(mirror.path, root) or has_commit(mirror, source.commit):
                has_mirror = True
                for name in git_server.refs_for(source.track):
                    if sha := read_ref(mirror, name):
                        return _peel_tag(mirror, sha), mirror
    if access.offline:
        problem = f"no mirror has the source, so the commit of {source.track} is not known"
        if has_mirror:
            problem = f"the mirrors of the source do not have the branch {source.track}"
        raise git_server.UnreachableError(
            f"{problem}, and --offline forbids asking {source.git}",
            where,
            "give --mirror DIR with a clone that has the branch",
            kind=UNREACHABLE,
            value=source.track,
        )
    with tempfile.TemporaryDirectory() as folder:
        git = Git(Path(folder), protocols=":".join(access.protocols))
        git.init()
        tip = git_server.find_tip(git, source.git, source.track, where)
    if tip is None:
        raise UserError(
            f"{source.git} has no branch or tag {source.track}: it was deleted or renamed",
            where,
            "correct `track` in the manifest",
            kind=MISSING,
            value=source.track,
        )
    return tip, None


def has_commit(mirror: Mirror, commit: str) -> bool:
    """Return whether a mirror has this commit."""
    with tempfile.TemporaryDirectory() as folder:
        done = _open_mirror(Path(folder), mirror).run("cat-file", "-e", commit, check=False)
    return done.returncode == 0


def _peel_tag(mirror: Mirror, sha: str) -> str:
    """Return the commit of a ref's object, which may be an annotated tag."""
    with tempfile.TemporaryDirectory() as folder:
        return _open_mirror(Path(folder), mirror).text(
            "rev-parse", "--verify", "--quiet", f"{sha}^{{commit}}"
        )


def _open_mirror(folder: Path, mirror: Mirror) -> Git:
    """Return an empty repository in a folder that can read the objects of a mirror."""
    git = Git(folder, alternates=(mirror.objects,))
    git.init()
    return git
