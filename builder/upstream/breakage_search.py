"""Find the upstream commit that broke a patch, in the history of the file, newest version first."""

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
    """An upstream commit, as messages show it. `date` is the day on which it was committed."""

    commit: str
    author: str
    date: str
    subject: str

    def __str__(self) -> str:
        return f'{self.commit[:12]} ({self.author}, {self.date}, "{self.subject}")'


@dataclass(frozen=True)
class Version:
    """A file after one commit; `blob` and `data` are None if the commit has no such file."""

    cause: Cause
    blob: str | None
    data: bytes | None


def parse_log_line(line: str) -> Cause:
    """Return the commit that a line of `git log` in FORMAT describes."""
    clean = [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", part) for part in line.split("\x1f", 3)]
    return Cause(*clean)


def _list_commits(git: Git, commit: str, path: str, *options: str) -> list[Cause]:
    """Return the commits up to `commit` that changed `path`, newest first."""
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    process = literal.run(
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
    if process.returncode:
        return []
    lines = process.stdout.decode("utf-8", "replace").splitlines()
    return [parse_log_line(line) for line in lines if line]


def iterate_versions(git: Git, commit: str, path: str) -> Iterator[Version]:
    """Yield the versions of a file up to `commit`, newest first, until one cannot be read."""
    causes = iter(_list_commits(git, commit, path))
    while batch := list(islice(causes, _BATCH)):
        request = "".join(f"{cause.commit}:{path}\n" for cause in batch).encode()
        output = git.run("cat-file", "--batch", stdin=request, check=False).stdout
        position = 0
        for cause in batch:
            header_end = output.find(b"\n", position)
            if header_end < 0:
                return
            header = output[position:header_end].split(b" ")
            position = header_end + 1
            if header[-1] == b"missing":
                yield Version(cause, None, None)
                continue
            size = int(header[-1])
            yield Version(cause, header[0].decode(), output[position : position + size])
            position += size + 1


def find_breaking_commit(
    git: Git, commit: str, path: str, wanted: Sequence[Hunk], earlier: Sequence[Sequence[Hunk]]
) -> tuple[Cause, bool] | None:
    """Find the commit after which hunks no longer fit a file.

    Args:
        git: The repository, with upstream's history.
        commit: The newest commit to look at.
        path: The file.
        wanted: The hunks.
        earlier: The hunks that our earlier patches apply to the file, one sequence per patch.

    Returns:
        The commit, and whether it made the very same change. None if the hunks fit the newest
        version, or no version at all.
    """
    newer: Version | None = None
    for version in iterate_versions(git, commit, path):
        if version.data is not None and patch_hunks.accepts_hunks(
            _apply_earlier(version.data, earlier), wanted
        ):
            if newer is None:
                return None
            return newer.cause, _has_change(newer, wanted, earlier)
        newer = version
    return None


def _has_change(
    version: Version, wanted: Sequence[Hunk], earlier: Sequence[Sequence[Hunk]]
) -> bool:
    """Return whether a version has the change, with or without our earlier patches."""
    if version.data is None:
        return False
    patched = _apply_earlier(version.data, earlier)
    unpatched = patch_hunks.split_lines(version.data)
    return patch_hunks.contains_hunks(patched, wanted) or patch_hunks.contains_hunks(
        unpatched, wanted
    )


def _apply_earlier(data: bytes, earlier: Sequence[Sequence[Hunk]]) -> list[bytes]:
    """Return the lines of a file with the hunks of our earlier patches in it."""
    text = patch_hunks.split_lines(data)
    for hunks in earlier:
        text, _ = patch_hunks.fit_hunks(text, hunks)
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
    """Return the last commit that added `path`."""
    return next(iter(_list_commits(git, commit, path, "--diff-filter=A", "-1")), None)


def find_removal(git: Git, commit: str, path: str) -> tuple[Cause, str | None] | None:
    """Return the last commit that removed `path`, and the new path if the commit moved the file."""
    removals = _list_commits(git, commit, path, "--diff-filter=D", "-1")
    if not removals:
        return None
    cause = removals[0]
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
