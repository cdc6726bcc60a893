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
    """Return the commit at which the branch or tag that the source tracks stands now: in a mirror
    of it, else on its server.

    Raises UserError naming the ref if it was lost, or if nobody can be asked.
    """
    return find_tip(source, access)[0]


def check_on_branch(source: GitSource, access: Access) -> None:
    """UserError unless the pin lies on the branch that the source tracks, as it stands now;
    UnreachableError where nobody can be asked.
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
    what = (
        f"commit {source.commit} does not lie on {source.track}, which stands at {tip} "
        "(force-pushed?)"
    )
    raise UserError(
        what,
        f"source {source.name}",
        "move the pin, or correct `track` in the manifest",
        kind=CONFLICT,
        value=source.commit,
    )


def find_tip(source: GitSource, access: Access) -> tuple[str, Mirror | None]:
    """Return the tip of the branch, and the mirror that has it; None if the server has it."""
    check_pin(source, access)
    where = f"source {source.name}"
    word = repository_name(source.git)
    seen = False
    for root in access.mirrors:
        for mirror in find_mirrors(root, word):
            if word in path_words(mirror.path, root) or has_commit(mirror, source.commit):
                seen = True
                for name in git_server.refs_for(source.track):
                    if sha := read_ref(mirror, name):
                        return _peel_tag(mirror, sha), mirror
    if access.offline:
        what = (
            f"{'its mirrors do not have' if seen else 'no mirror of it can say where'} the branch "
            f"{source.track}{'' if seen else ' stands'}"
        )
        raise git_server.UnreachableError(
            f"{what}, and --offline forbids asking {source.git}",
            where,
            "give --mirror DIR with a clone that has it",
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
        return (
            _open_mirror(Path(folder), mirror).run("cat-file", "-e", commit, check=False).returncode
            == 0
        )


def _peel_tag(mirror: Mirror, sha: str) -> str:
    """Return the commit that a ref's object stands for, where that is an annotated tag."""
    with tempfile.TemporaryDirectory() as folder:
        return _open_mirror(Path(folder), mirror).text(
            "rev-parse", "--verify", "--quiet", f"{sha}^{{commit}}"
        )


def _open_mirror(folder: Path, mirror: Mirror) -> Git:
    git = Git(folder, alternates=(mirror.objects,))
    git.init()
    return git
