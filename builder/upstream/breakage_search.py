"""Which upstream commit broke a patch: found in the file's own history, newest version first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from builder.upstream import patch_hunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.upstream.git import Git
    from builder.upstream.patch_hunks import Hunk

FORMAT = "--format=%H%x1f%an%x1f%cs%x1f%s"
_BATCH = 32


@dataclass(frozen=True)
class Cause:
    """A commit of upstream's, as a person wants to see it. `date` is the day it was committed."""

    commit: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f'{self.commit[:12]} ({self.author}, {self.date}, "{self.subject}")'


@dataclass(frozen=True)
class Version:
    """A file as one commit left it; blob and data are None where the commit has no such file."""

    cause: Cause
    blob: str | None
    data: bytes | None


def parse_log_line(line: str) -> Cause:
    """Return a line that `git log` wrote in FORMAT."""
    clean = [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", part) for part in line.split("\x1f", 3)]
    return Cause(*clean)


def _list_commits(git: Git, commit: str, path: str, *options: str) -> list[Cause]:
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    done = literal.run(
        "log",
        "--first-parent",
        "--no-renames",
        FORMAT,
        *options,
        "--end-of-options",
        commit,
        "--",
        path,
        check=False,
    )
    return (
        [
            parse_log_line(line)
            for line in done.stdout.decode("utf-8", "replace").splitlines()
            if line
        ]
        if done.returncode == 0
        else []
    )


def iterate_versions(git: Git, commit: str, path: str) -> Iterator[Version]:
    """Every version of a file up to `commit`, newest first; what cannot be read is left out."""
    commits = iter(_list_commits(git, commit, path))
    while batch := list(islice(commits, _BATCH)):
        wanted = "".join(f"{one.commit}:{path}\n" for one in batch).encode()
        out = git.run("cat-file", "--batch", stdin=wanted, check=False).stdout
        at = 0
        for one in batch:
            end = out.find(b"\n", at)
            if end < 0:
                return
            head = out[at:end].split(b" ")
            at = end + 1
            if head[-1] == b"missing":
                yield Version(one, None, None)
                continue
            size = int(head[-1])
            yield Version(one, head[0].decode(), out[at : at + size])
            at += size + 1


def find_breaking_commit(
    git: Git, commit: str, path: str, wanted: Sequence[Hunk], earlier: Sequence[Sequence[Hunk]]
) -> tuple[Cause, bool] | None:
    """Return the commit after which `wanted` no longer fits `path`, and whether that commit made
    the very same change.

    `earlier` are the hunks that our own stack puts into the file before. None: the newest version
    takes it, or none does.
    """
    newer: Version | None = None
    for version in iterate_versions(git, commit, path):
        if version.data is not None and patch_hunks.accepts_hunks(
            _apply_earlier(version.data, earlier), wanted
        ):
            if newer is None:
                return None
            made = newer.data is not None and (
                patch_hunks.contains_hunks(_apply_earlier(newer.data, earlier), wanted)
                or patch_hunks.contains_hunks(patch_hunks.split_lines(newer.data), wanted)
            )
            return newer.cause, made
        newer = version
    return None


def _apply_earlier(data: bytes, earlier: Sequence[Sequence[Hunk]]) -> list[bytes]:
    text = patch_hunks.split_lines(data)
    for one in earlier:
        text, _ = patch_hunks.fit_hunks(text, one)
    return text


def find_first_change(git: Git, commit: str, path: str, blob: str) -> Cause | None:
    """Return the commit that first changed `path` away from `blob`."""
    newer: Version | None = None
    for version in iterate_versions(git, commit, path):
        if version.blob == blob:
            return newer.cause if newer else None
        newer = version
    return None


def find_addition(git: Git, commit: str, path: str) -> Cause | None:
    """Return the commit that brought `path` in."""
    return next(iter(_list_commits(git, commit, path, "--diff-filter=A", "-1")), None)


def find_removal(git: Git, commit: str, path: str) -> tuple[Cause, str | None] | None:
    """Return the commit that took `path` away, and where it moved the file to, if it did."""
    found = _list_commits(git, commit, path, "--diff-filter=D", "-1")
    if not found:
        return None
    cause = found[0]
    out = git.run(
        "diff-tree",
        "-r",
        "-z",
        "-M",
        "-l0",
        "--name-status",
        "--diff-filter=R",
        f"{cause.commit}^1",
        cause.commit,
        check=False,
    )
    parts = out.stdout.decode("utf-8", "surrogateescape").split("\0")
    for _, old, new in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if old == path:
            return cause, new
    return cause, None
