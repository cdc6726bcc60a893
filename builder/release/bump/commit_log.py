"""The commits of a repository, as `git log` lists them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.upstream import breakage_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.upstream.breakage_search import Cause
    from builder.upstream.git import Git


def list_commits(git: Git, *options: str, paths: Sequence[str] = ()) -> list[Cause]:
    """Return the commits that `git log OPTIONS -- PATHS` lists, newest first.

    Args:
        git: The repository.
        options: Options of `git log`, and revisions or ranges.
        paths: Literal paths. If there are any, only commits that changed one of them are listed.
    """
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    output = literal.text(
        "log",
        "--no-show-signature",
        "--no-renames",
        breakage_search.FORMAT,
        *[option for option in options if option.startswith("-")],
        "--end-of-options",
        *[revision for revision in options if not revision.startswith("-")],
        "--",
        *paths,
    )
    return [breakage_search.parse_log_line(line) for line in output.splitlines() if line]


def read_commit(git: Git, commit: str) -> Cause:
    """Return one commit with its author, date and subject."""
    return list_commits(git, "-1", commit)[0]


def read_parents(git: Git, commit: str) -> list[str]:
    """Return the parents of a commit, the first parent first."""
    return git.text(
        "log", "-1", "--no-show-signature", "--format=%P", "--end-of-options", commit
    ).split()


def read_commit_time(git: Git, commit: str) -> int:
    """Return when a commit was committed, in seconds since 1970."""
    return int(
        git.text("log", "-1", "--no-show-signature", "--format=%ct", "--end-of-options", commit)
    )
