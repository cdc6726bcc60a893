"""A source's git server: which URLs may be asked, and what is fetched from one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from builder.upstream.git import Git, extract_error
from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FETCH = ("fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
_DO = "name an https:// URL"


class UnreachableError(UserError):
    """The server did not answer, or not as a git server does."""


def check_url(url: str, protocols: Iterable[str], where: str) -> str:
    """`url` as it came, if it may be asked: a scheme of `protocols`, a host, no credentials,
    nothing git takes for an option.
    """
    shown = redact(url)
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*)://([^/]*)(/.*)", url)
    if url.startswith("-"):
        raise UserError(f"the URL {shown!r} begins with a dash", where, _DO, kind=INVALID)
    if "::" in url.split("/", maxsplit=1)[0]:
        raise UserError(
            f"the URL {shown!r} names a program to run",
            where,
            _DO,
            kind=DENIED,
            value=url.split("::", maxsplit=1)[0],
        )
    if re.search(r"[\x00-\x20\x7f]", url):
        raise UserError(
            f"the URL {shown!r} holds a space or a control character", where, _DO, kind=INVALID
        )
    if not match:
        raise UserError(f"{shown!r} is no URL", where, _DO, kind=INVALID, value=shown)
    scheme, host, path = match.groups()
    if scheme not in protocols:
        raise UserError(
            f"the URL {shown!r} uses {scheme}, which is not allowed here",
            where,
            f"use {' or '.join(protocols)}",
            kind=UNSUPPORTED,
            value=scheme,
        )
    user, _, server = host.rpartition("@")
    if ":" in user or (user and scheme != "ssh"):
        raise UserError(
            f"the URL {shown!r} holds credentials",
            where,
            "leave them out: git's ssh agent or netrc file is the place for them",
            kind=DENIED,
        )
    if user.startswith("-") or server.startswith("-") or path.startswith("/-"):
        raise UserError(
            f"the URL {shown!r} holds a name that begins with a dash", where, _DO, kind=INVALID
        )
    if (scheme == "file") == bool(server):
        raise UserError(
            f"the URL {shown!r} {'has a host' if server else 'has no host'}",
            where,
            _DO,
            kind=INVALID,
            value=server,
        )
    return url


def check_ref(name: str, where: str) -> str:
    """Return a branch or tag by its short name, or a full ref, as it came; a UserError if git
    could take it for anything else.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*", name) or re.search(
        r"\.\.|//|/\.|\.lock(/|$)|[/.]$", name
    ):
        raise UserError(
            f"{name!r} is no name of a branch or tag",
            where,
            "name a branch",
            kind=INVALID,
            value=name,
        )
    return name


def refs_for(name: str) -> tuple[str, ...]:
    """Return the full names that the short name of a branch or tag may stand for, the likeliest
    first.
    """
    return (name,) if name.startswith("refs/") else (f"refs/heads/{name}", f"refs/tags/{name}")


def find_tip(git: Git, url: str, name: str, where: str) -> str | None:
    """Where a branch or tag of the server stands; None if it has no such ref, UnreachableError if
    it cannot be asked.
    """
    found = _refs(git, url, where, *(ref + peel for ref in refs_for(name) for peel in ("", "^{}")))
    for ref in refs_for(name):
        if stands := found.get(ref + "^{}") or found.get(ref):
            return stands
    if not _refs(git, url, where):
        raise UnreachableError(
            f"{redact(url)} answers, but with no branch at all (a login page or a proxy's answer?)",
            where,
            "correct the URL",
        )
    return None


def list_branches(git: Git, url: str, where: str) -> dict[str, str]:
    """Return the branches of the server and where they stand; UnreachableError if it cannot be
    asked.
    """
    heads = "refs/heads/"
    return {
        name.removeprefix(heads): sha
        for name, sha in _refs(git, url, where, f"{heads}*").items()
        if name.startswith(heads)
    }


def _refs(git: Git, url: str, where: str, *patterns: str) -> dict[str, str]:
    done = git.run("ls-remote", "--quiet", "--end-of-options", url, *patterns, check=False)
    if done.returncode:
        raise UnreachableError(
            f"{redact(url)} cannot be reached ({extract_error(done.stderr)})",
            where,
            "try again when it can",
        )
    lines = [line.partition("\t") for line in done.stdout.decode("utf-8", "replace").splitlines()]
    return {name: sha for sha, _, name in lines if re.fullmatch(r"[0-9a-f]{40}", sha)}


def fetch_commit(
    into: Path, url: str, commit: str, track: str, *, protocols: Iterable[str], where: str
) -> Git:
    """Fetch `commit` into the new bare repository `into`: by its name, or, where the server refuses
    that, with its branch.

    Raises a UserError that says which of it is: the server unreachable, the branch lost, the
    commit gone.
    """
    git = Git(into, protocols=":".join(protocols))
    git.init()
    by_name = git.run(*_FETCH, "--depth=1", "--end-of-options", url, commit, check=False)
    if by_name.returncode:
        stands = find_tip(git, url, track, where)
        refused = extract_error(by_name.stderr)
        if stands is None:
            raise UserError(
                (
                    f"commit {commit} cannot be fetched ({refused}), and the branch {track} is "
                    f"gone from {redact(url)}"
                ),
                where,
                "move the pin and its branch",
                kind=MISSING,
                value=track,
            )
        fetch_branch(git, url, stands, where=where)
        if not contains_commit(git, stands, commit):
            raise UserError(
                (
                    f"commit {commit} is gone from {redact(url)}: the branch {track} stands at "
                    f"{stands} and does not hold it (force-pushed?)"
                ),
                where,
                "move the pin, or use a --mirror that still has it",
                kind=MISSING,
                value=commit,
            )
    return Git(into)


def fetch_branch(
    git: Git, url: str, stands: str, *, where: str, without_trees: bool = False
) -> None:
    """Fetch the commit at which a branch stands and all before it; the server may leave the trees
    away if asked to.
    """
    done = git.run(
        *_FETCH,
        *(("--filter=tree:0",) if without_trees else ()),
        "--end-of-options",
        url,
        stands,
        check=False,
    )
    if done.returncode:
        raise UnreachableError(
            f"{stands} cannot be fetched from {redact(url)} ({extract_error(done.stderr)})",
            where,
            "run again",
        )


def contains_commit(git: Git, stands: str, commit: str) -> bool:
    """Whether `commit` is `stands` or one of its ancestors, as far as the repository's history
    reaches.
    """
    return git.run("merge-base", "--is-ancestor", commit, stands, check=False).returncode == 0
