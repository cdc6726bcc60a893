"""What a pinned commit needs, read whole: the commit, its trees and the content of every file that
is not absent.
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
    """A commit's header: its tree, its parents, the committer's date in seconds since 1970."""

    tree: str
    parents: tuple[str, ...]
    date: int


def read_commit(reader: Reader, sha: str) -> Commit:
    """Return the header of the commit `sha`; UserError if it is missing (MissingObjectError),
    corrupt or malformed.
    """
    header = reader.read(sha, "commit").partition(b"\n\n")[0].decode("utf-8", "replace")
    tree = re.match(r"tree ([0-9a-f]{40})\n", header)
    date = re.search(r"^committer .* ([0-9]{1,12}) [+-][0-9]{4}$", header, re.MULTILINE)
    if not tree or not date:
        raise UserError(
            "is no well-formed commit",
            f"{reader.where}, object {sha}",
            "take no source that holds it",
            kind=INVALID,
        )
    return Commit(
        tree[1], tuple(re.findall(r"^parent ([0-9a-f]{40})$", header, re.MULTILINE)), int(date[1])
    )


def check_absent(absent: Iterable[str], paths: Collection[str], name: str) -> None:
    """UserError if the manifest lists a path as absent from source `name` that the source does not
    have at all.
    """
    for path in absent:
        if path not in paths:
            raise UserError(
                f"absent names {path!r}, which the pin does not have",
                f"source {name}",
                "remove that line",
            )


def verify_commit(reader: Reader, sha: str, absent: tuple[str, ...], name: str) -> None:
    """Read all that the commit `sha` of source `name` needs; the reader hashes it, and what is
    hostile is refused.
    """
    entries = list_tree_files(reader, read_commit(reader, sha).tree)
    check_absent(absent, {entry.path for entry in entries}, name)
    links: dict[str, str] = {}
    wanted = exported_entries(entries, absent)
    for entry in wanted:
        content = _read_blob(reader, entry, sha, name)
        if entry.mode == LINK:
            links[entry.path] = content.decode("utf-8", "surrogateescape")
    check_layout(wanted, links, reader.where)


def _read_blob(reader: Reader, entry: Entry, commit: str, name: str) -> bytes:
    try:
        return reader.read(entry.sha, "blob")
    except MissingObjectError as error:
        what = f"lacks the content of {entry.path} (object {entry.sha}) at commit {commit}"
        raise MissingObjectError(
            what,
            reader.where,
            f"use a complete clone, or list the path under sources.{name}.absent",
        ) from error
