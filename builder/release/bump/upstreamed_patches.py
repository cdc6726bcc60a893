"""Find out whether upstream has taken a patch.

Several signals are combined, because each of them alone misses something. A patch id misses a
patch that was committed together with other changes. A reverse check misses a patch that was edited
later. A merge misses a patch that conflicts.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.release.bump.commit_log import list_commits, read_commit
from builder.upstream import patch_hunks
from builder.upstream.git_index import Index

if TYPE_CHECKING:
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
class UpstreamSignals:
    """The signs that upstream has the change of a patch.

    Attributes:
        merges_empty: Whether a three-way merge of the patch changes nothing.
        same_patch_id: A commit since the pin that makes the same change.
        reverses: Whether the patch can be reversed on upstream's files.
        same_subject: A commit since the pin with the subject of the patch, which is only a hint.
        upstream_line_count: How many lines that the patch adds are upstream now, and how many
            lines that it removes are gone.
        line_count: How many lines the patch adds and removes.
    """

    merges_empty: bool
    same_patch_id: Cause | None
    reverses: bool
    same_subject: Cause | None
    upstream_line_count: int
    line_count: int

    @property
    def is_taken(self) -> bool:
        """Whether upstream has the whole change."""
        # A patch that upstream took and reverted has a patch id, but none of its lines.
        return (
            self.merges_empty
            or self.reverses
            or (self.same_patch_id is not None and self.upstream_line_count > 0)
            or self.line_count == self.upstream_line_count > 0
        )

    @property
    def is_partly_taken(self) -> bool:
        """Whether upstream has some lines of the change, but not all of it."""
        return not self.is_taken and self.upstream_line_count > 0

    def as_json(self) -> dict[str, Any]:
        """Return the signals for `--json`."""
        return {
            "merged_empty": self.merges_empty,
            "patch_id": vars(self.same_patch_id) if self.same_patch_id else None,
            "reverse": self.reverses,
            "subject": vars(self.same_subject) if self.same_subject else None,
            "lines": self.upstream_line_count,
            "of": self.line_count,
            "taken": self.is_taken,
            "partly": self.is_partly_taken,
        }

    def __str__(self) -> str:
        signs = []
        if self.merges_empty:
            signs.append("a merge changes nothing")
        if self.same_patch_id:
            signs.append(f"the same change in {self.same_patch_id}")
        if self.reverses:
            signs.append("the patch can be reversed")
        if self.same_subject:
            signs.append(f"the same subject in {self.same_subject}")
        if self.upstream_line_count:
            signs.append(
                f"{self.upstream_line_count} of {self.line_count} changed lines are upstream"
            )
        return "; ".join(signs)


def compare_with_upstream(
    upstream: Upstream, pin: str, commit: str, tree: str, patch: Patch
) -> UpstreamSignals:
    """Look for the change of a patch in upstream.

    Args:
        upstream: The repository of the upstream.
        pin: The commit that the patch was made for.
        commit: The commit to look at, a descendant of `pin`.
        tree: The tree that the patch would be applied to: `commit` with the earlier patches.
        patch: The patch.
    """
    git = upstream.git
    with tempfile.TemporaryDirectory(prefix="rosetta-") as folder:
        index = Index(git, Path(folder, "index"))
        index.read_tree(tree)
        reverses = bool(patch.files) and index.apply(patch.diff, "--check", "-R") is None
        merges_empty = index.merge(patch.diff) is None and index.write_tree() == tree
    upstream_line_count, line_count = 0, 0
    for file in patch.files:
        upstream_lines, lines = _count_upstream_lines(git, pin, tree, file)
        upstream_line_count += upstream_lines
        line_count += lines
    return UpstreamSignals(
        merges_empty,
        _find_same_patch_id(git, f"{pin}..{commit}", patch),
        reverses,
        _find_same_subject(git, f"{pin}..{commit}", patch.subject),
        upstream_line_count,
        line_count,
    )


def _count_upstream_lines(git: Git, pin: str, tree: str, file: FilePatch) -> tuple[int, int]:
    """Return how many of a patch's changed lines upstream has, and how many changed lines it has.

    Lines that prove nothing are not counted: empty lines, and lines that upstream had before.
    """
    old_lines = _read_lines(git, file.old) or _read_lines(git, f"{pin}:{file.path}")
    new_lines = _read_lines(git, f"{tree}:{file.path}")
    body = [row for hunk in file.hunks for row in hunk.body]
    added = {line for sign, line in body if sign == "+" and line.strip()} - old_lines
    removed = {line for sign, line in body if sign == "-" and line.strip()}
    removed -= {line for sign, line in body if sign != "-"}
    upstream_added = added & new_lines
    # A missing line proves something only if upstream also has what the patch puts in its place,
    # or if the patch puts nothing in its place.
    upstream_removed: set[bytes] = set()
    if new_lines and (upstream_added or not added):
        upstream_removed = removed - new_lines
    return len(upstream_added) + len(upstream_removed), len(added) + len(removed)


def _read_lines(git: Git, blob: str) -> set[bytes]:
    """Return the lines of a file, empty if there is no such file."""
    done = git.run("cat-file", "blob", blob, check=False)
    return set(patch_hunks.split_lines(done.stdout)) if done.returncode == 0 else set()


def _find_same_patch_id(git: Git, commits: str, patch: Patch) -> Cause | None:
    """Return the commit of a range that has the patch id of a patch."""
    patch_id = git.run("patch-id", "--stable", stdin=patch.diff, check=False).stdout.split()
    if not patch_id:
        return None
    literal = replace(git, extra={**git.extra, "GIT_LITERAL_PATHSPECS": "1"})
    paths = [file.path for file in patch.files]
    options = ("--no-merges", *_DIFF, "--format=commit %H", "--end-of-options")
    log = literal.run("log", *options, commits, "--", *paths, check=False)
    rows = git.run("patch-id", "--stable", stdin=log.stdout, check=False).stdout
    for row in rows.splitlines():
        upstream_id, commit = row.split()
        if upstream_id == patch_id[0]:
            return read_commit(git, commit.decode())
    return None


def _find_same_subject(git: Git, commits: str, subject: str) -> Cause | None:
    """Return the newest commit of a range whose subject is that of a patch."""
    wanted = _normalize_subject(_without_area(subject))
    for commit in list_commits(git, commits):
        subjects = (commit.subject, _without_area(commit.subject))
        if wanted in [_normalize_subject(candidate) for candidate in subjects]:
            return commit
    return None


def _without_area(subject: str) -> str:
    """Return a subject without the part before ": "."""
    return subject.split(": ", 1)[-1]


def _normalize_subject(subject: str) -> str:
    """Return a subject without the number of a pull request, full stops and capital letters."""
    return re.sub(r"\s*\(#\d+\)\s*$", "", subject).strip(" .").casefold()
