"""Read and verify all objects of a pinned commit: the commit, its trees and its files.

Files that the manifest lists under `absent` of the source are not exported, so they are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.upstream.git_objects import LINK, MissingObjectError, list_tree_files
from builder.upstream.tree_export import check_layout, exported_entries
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from builder.upstream.git_objects import Entry, Reader


@dataclass(frozen=True)
class Commit:
    """The header of a commit.

    Attributes:
        tree: The SHA-1 of its root tree.
        parents: The SHA-1 of each parent.
        date: The committer's date, in seconds since 1970.
    """

    tree: str
    parents: tuple[str, ...]
    date: int


def read_commit(reader: Reader, sha: str) -> Commit:
    """Return the header of a commit.

    Raises:
        MissingObjectError: The commit is missing.
        UserError: The commit is corrupt or malformed.
    """
    header = reader.read(sha, "commit").partition(b"\n\n")[0].decode("utf-8", "replace")
    tree = re.match(r"tree ([0-9a-f]{40})\n", header)
    date = re.search(r"^committer .* ([0-9]{1,12}) [+-][0-9]{4}$", header, re.MULTILINE)
    if not tree or not date:
        raise UserError(
            "is not a well-formed commit",
            f"{reader.where}, object {sha}",
            "choose another source",
            kind=INVALID,
        )
    parents = re.findall(r"^parent ([0-9a-f]{40})$", header, re.MULTILINE)
    return Commit(tree[1], tuple(parents), int(date[1]))


def check_absent(absent: Iterable[str], paths: Collection[str], source_name: str) -> None:
    """Check that the commit has each path that is left out, so that the list has no stale entries.

    Args:
        absent: The source's `absent` in the manifest: paths that are left out.
        paths: The paths of the commit.
        source_name: The source's name.

    Raises:
        UserError: The commit does not have a listed path.
    """
    for path in absent:
        if path not in paths:
            raise UserError(
                f"`absent` lists {path!r}, which the pinned commit does not have",
                f"source {source_name}",
                "remove that line from the manifest",
            )


def verify_commit(reader: Reader, sha: str, absent: tuple[str, ...], source_name: str) -> None:
    """Check that all objects that a pinned commit needs are there, intact and safe to write.

    Args:
        reader: Reads the objects of the repository, and checks the hash of each.
        sha: The commit.
        absent: The source's `absent` in the manifest: paths that are left out.
        source_name: The source's name.

    Raises:
        MissingObjectError: An object is missing.
        UserError: An object is corrupt, or the tree is unsafe.
    """
    entries = list_tree_files(reader, read_commit(reader, sha).tree)
    check_absent(absent, {entry.path for entry in entries}, source_name)
    links: dict[str, str] = {}
    needed = exported_entries(entries, absent)
    for entry in needed:
        content = _read_blob(reader, entry, sha, source_name)
        if entry.mode == LINK:
            links[entry.path] = content.decode("utf-8", "surrogateescape")
    check_layout(needed, links, reader.where)


def _read_blob(reader: Reader, entry: Entry, commit_sha: str, source_name: str) -> bytes:
    """Return the content of a file; if it is missing, the error names its path."""
    try:
        return reader.read(entry.sha, "blob")
    except MissingObjectError as error:
        raise MissingObjectError(
            f"lacks the content of {entry.path} (object {entry.sha}) at commit {commit_sha}",
            reader.where,
            f"use a complete clone, or list the path under sources.{source_name}.absent",
        ) from error
