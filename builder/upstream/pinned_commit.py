"""Read and verify all objects of a pinned commit: the commit, its trees and its files.

Files that the manifest lists as absent are not needed, so they are not read.
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
        tree: The name of its root tree.
        parents: The names of its parents.
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
    return Commit(
        tree[1], tuple(re.findall(r"^parent ([0-9a-f]{40})$", header, re.MULTILINE)), int(date[1])
    )


def check_absent(absent: Iterable[str], paths: Collection[str], name: str) -> None:
    """Refuse a path that the manifest lists as absent and that the source does not have.

    Args:
        absent: The paths that the manifest lists as absent.
        paths: The paths of the source.
        name: The source's name.

    Raises:
        UserError: A listed path does not exist.
    """
    for path in absent:
        if path not in paths:
            raise UserError(
                f"`absent` lists {path!r}, which the pinned commit does not have",
                f"source {name}",
                "remove that line from the manifest",
            )


def verify_commit(reader: Reader, sha: str, absent: tuple[str, ...], name: str) -> None:
    """Read all objects that a pinned commit needs. The reader hashes each of them.

    Args:
        reader: Reads the repository.
        sha: The commit.
        absent: The paths that the manifest lists as absent.
        name: The source's name.

    Raises:
        MissingObjectError: An object is missing.
        UserError: An object is corrupt, or the tree is unsafe.
    """
    entries = list_tree_files(reader, read_commit(reader, sha).tree)
    check_absent(absent, {entry.path for entry in entries}, name)
    links: dict[str, str] = {}
    needed = exported_entries(entries, absent)
    for entry in needed:
        content = _read_blob(reader, entry, sha, name)
        if entry.mode == LINK:
            links[entry.path] = content.decode("utf-8", "surrogateescape")
    check_layout(needed, links, reader.where)


def _read_blob(reader: Reader, entry: Entry, commit: str, name: str) -> bytes:
    """Return the content of a file; if it is missing, the error names its path."""
    try:
        return reader.read(entry.sha, "blob")
    except MissingObjectError as error:
        problem = f"lacks the content of {entry.path} (object {entry.sha}) at commit {commit}"
        raise MissingObjectError(
            problem,
            reader.where,
            f"use a complete clone, or list the path under sources.{name}.absent",
        ) from error
