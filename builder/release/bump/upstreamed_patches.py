"""Whether upstream took a patch: several signals, since each of them alone misses something.

A patch id misses what was taken together with more, a reverse check what was edited later, a merge
what conflicts.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.upstream import breakage_search, patch_hunks
from builder.upstream.git_index import Index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.release.bump.branch_state import Upstream
    from builder.upstream.breakage_search import Cause
    from builder.upstream.git import Git
    from builder.upstream.patch_file import FilePatch, Patch

_DIFF = (
    "-p",
    "-U1",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-show-signature",
    "--diff-algorithm=myers",
    "--indent-heuristic",
)


@dataclass(frozen=True)
class Signals:
    """What speaks for upstream having a patch's change.

    `merged_empty`: a three-way merge changes nothing; `patch_id`: a commit since the pin makes the
    same change; `reverse`: the patch can be taken back from upstream's files; `subject`: a commit
    since the pin has its subject (a hint only); `lines` of `of`: how many lines that it adds are
    there now, and that it removes are gone.
    """

    merged_empty: bool
    patch_id: Cause | None
    reverse: bool
    subject: Cause | None
    lines: int
    of: int

    @property
    def taken(self) -> bool:
        # What was taken and thrown out again has a patch id, but none of its lines.
        return (
            self.merged_empty
            or self.reverse
            or (self.patch_id is not None and self.lines > 0)
            or self.of == self.lines > 0
        )

    @property
    def partly(self) -> bool:
        return not self.taken and self.lines > 0

    def __str__(self) -> str:
        said = [
            "a merge changes nothing" if self.merged_empty else "",
            f"the same change in {self.patch_id}" if self.patch_id else "",
            "it can be taken back" if self.reverse else "",
            f"its subject in {self.subject}" if self.subject else "",
            f"{self.lines} of {self.of} changed lines are upstream" if self.lines else "",
        ]
        return "; ".join(filter(None, said))


def signals(upstream: Upstream, pin: str, commit: str, before: str, patch: Patch) -> Signals:
    """Compare a patch made for `pin` with upstream at `commit`, where `before` is the tree that the
    patch meets.
    """
    git = upstream.git
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
        index = Index(git, Path(folder, "index"))
        index.read_tree(before)
        reverse = bool(patch.files) and index.apply(patch.diff, "--check", "-R") is None
        merged_empty = index.merge(patch.diff) is None and index.write_tree() == before
    counts = [_lines(git, pin, before, file) for file in patch.files]
    there, total = sum(one for one, _ in counts), sum(one for _, one in counts)
    return Signals(
        merged_empty,
        _same_id(git, pin, commit, patch),
        reverse,
        _same_subject(git, pin, commit, patch.subject),
        there,
        total,
    )


def _lines(git: Git, pin: str, tree: str, file: FilePatch) -> tuple[int, int]:
    """How many of a patch's changed lines upstream has, and how many there are; lines that prove
    nothing do not count.
    """
    old, now = (
        _text(git, file.old) or _text(git, f"{pin}:{file.path}"),
        _text(git, f"{tree}:{file.path}"),
    )
    added = {
        line for hunk in file.hunks for op, line in hunk.body if op == "+" and line.strip()
    } - old
    removed = {line for hunk in file.hunks for op, line in hunk.body if op == "-" and line.strip()}
    removed -= {line for hunk in file.hunks for op, line in hunk.body if op != "-"}
    there = added & now
    # Lines that went away prove something only where what came in their place is ours, or where
    # nothing was to come.
    gone = {line for line in removed if now and line not in now} if there or not added else set()
    return len(there) + len(gone), len(added) + len(removed)


def _text(git: Git, name: str) -> set[bytes]:
    done = git.run("cat-file", "blob", name, check=False)
    return set(patch_hunks.lines(done.stdout)) if done.returncode == 0 else set()


def _same_id(git: Git, pin: str, commit: str, patch: Patch) -> Cause | None:
    ours = git.run("patch-id", "--stable", stdin=patch.diff, check=False).stdout.split()
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    paths = [file.path for file in patch.files]
    theirs = literal.run(
        "log",
        "--no-merges",
        *_DIFF,
        "--format=commit %H",
        "--end-of-options",
        f"{pin}..{commit}",
        "--",
        *paths,
        check=False,
    )
    for line in git.run(
        "patch-id", "--stable", stdin=theirs.stdout, check=False
    ).stdout.splitlines():
        found, by = line.split()
        if ours and found == ours[0]:
            return cause_of(git, by.decode())
    return None


def _same_subject(git: Git, pin: str, commit: str, subject: str) -> Cause | None:
    wanted = _plain(subject.split(": ", 1)[-1])
    return next(
        (
            one
            for one in log(git, f"{pin}..{commit}")
            if wanted in (_plain(one.subject), _plain(one.subject.split(": ", 1)[-1]))
        ),
        None,
    )


def _plain(subject: str) -> str:
    return re.sub(r"\s*\(#\d+\)\s*$", "", subject).strip(" .").casefold()


def log(git: Git, *what: str, paths: Sequence[str] = ()) -> list[Cause]:
    """Return the commits that `git log WHAT -- PATHS` names, newest first."""
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    options = [one for one in what if one.startswith("-")]
    ranges = [one for one in what if not one.startswith("-")]
    out = literal.text(
        "log",
        "--no-show-signature",
        "--no-renames",
        breakage_search.FORMAT,
        *options,
        "--end-of-options",
        *ranges,
        "--",
        *paths,
    )
    return [breakage_search.parse(line) for line in out.splitlines() if line]


def cause_of(git: Git, commit: str) -> Cause:
    """One commit, as a person wants to see it."""
    return log(git, "-1", commit)[0]
