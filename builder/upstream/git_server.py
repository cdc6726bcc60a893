"""Check the URL of a git server, list its branches and fetch commits from it."""

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
    """The server did not answer, or did not answer as a git server does."""


def check_url(url: str, protocols: Iterable[str], where: str) -> str:
    """Return `url` if git may connect to it.

    Raises:
        UserError: the URL has a scheme that is not in `protocols`, no host, credentials, or a part
          that git could take for an option.
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
        raise UserError(f"{shown!r} is not a valid URL", where, _DO, kind=INVALID, value=shown)
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
    """Return the name of a branch, a tag or a full ref if git cannot take it for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*", name) or re.search(
        r"\.\.|//|/\.|\.lock(/|$)|[/.]$", name
    ):
        raise UserError(
            f"{name!r} is not a valid name of a branch or tag",
            where,
            "name a branch",
            kind=INVALID,
            value=name,
        )
    return name


def refs_for(name: str) -> tuple[str, ...]:
    """Return the full refs that a short name of a branch or tag may mean, the likeliest first."""
    return (name,) if name.startswith("refs/") else (f"refs/heads/{name}", f"refs/tags/{name}")


def find_tip(git: Git, url: str, name: str, where: str) -> str | None:
    """Return the commit of a branch or tag on the server; None if the server has no such ref.

    Raises:
        UnreachableError: the server does not answer.
    """
    names = refs_for(name)
    peeled_names = [f"{ref}^{{}}" for ref in names]
    refs = _list_refs(git, url, where, *names, *peeled_names)
    for ref, peeled in zip(names, peeled_names, strict=True):
        if commit := refs.get(peeled) or refs.get(ref):
            return commit
    if not _list_refs(git, url, where):
        raise UnreachableError(
            f"{redact(url)} answers, but with no branch at all (a login page or a proxy's answer?)",
            where,
            "correct the URL",
        )
    return None


def list_branches(git: Git, url: str, where: str) -> dict[str, str]:
    """Return the branches of the server and their commits.

    Raises:
        UnreachableError: the server does not answer.
    """
    heads = "refs/heads/"
    return {
        name.removeprefix(heads): sha
        for name, sha in _list_refs(git, url, where, f"{heads}*").items()
        if name.startswith(heads)
    }


def _list_refs(git: Git, url: str, where: str, *patterns: str) -> dict[str, str]:
    """Return the refs of the server that match the patterns, with their objects."""
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
    """Fetch `commit` into the new bare repository `into`.

    The commit is fetched by its hash. If the server refuses that, its branch is fetched.

    Raises:
        UserError: the server is unreachable, the branch is lost, or the commit is gone; the error
          tells which.
    """
    git = Git(into, protocols=":".join(protocols))
    git.init()
    by_name = git.run(*_FETCH, "--depth=1", "--end-of-options", url, commit, check=False)
    if by_name.returncode:
        tip = find_tip(git, url, track, where)
        refused = extract_error(by_name.stderr)
        if tip is None:
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
        fetch_branch(git, url, tip, where=where)
        if not contains_commit(git, tip, commit):
            raise UserError(
                (
                    f"commit {commit} is gone from {redact(url)}: the branch {track} is at "
                    f"{tip} and does not contain it (force-pushed?)"
                ),
                where,
                "move the pin, or use a --mirror that still has it",
                kind=MISSING,
                value=commit,
            )
    return Git(into)


def fetch_branch(git: Git, url: str, tip: str, *, where: str, without_trees: bool = False) -> None:
    """Fetch the commit at the tip of a branch, with its history.

    With `without_trees`, the server may leave the trees out.
    """
    done = git.run(
        *_FETCH,
        *(("--filter=tree:0",) if without_trees else ()),
        "--end-of-options",
        url,
        tip,
        check=False,
    )
    if done.returncode:
        raise UnreachableError(
            f"{tip} cannot be fetched from {redact(url)} ({extract_error(done.stderr)})",
            where,
            "run again",
        )


def contains_commit(git: Git, tip: str, commit: str) -> bool:
    """Return whether `commit` is `tip` or one of its ancestors in the repository's history."""
    return git.run("merge-base", "--is-ancestor", commit, tip, check=False).returncode == 0
