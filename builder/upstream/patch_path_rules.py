"""Check the paths that a patch or an overlay names.

The rules are stricter than those for upstream sources, so that git never quotes such a path.
"""

from __future__ import annotations

import re

from builder.upstream.path_rules import check_path
from rosetta.core.errors import UserError

_PLAIN = re.compile(r"[ -!#-\[\]-~]+")  # printable ASCII without the double quote and the backslash


def find_path_problem(path: str) -> str | None:
    """Return why `path` is refused, in a few words; None if it is valid."""
    if not path or not _PLAIN.fullmatch(path):
        return "is not plain (printable ASCII, no double quote, no backslash)"
    if path.startswith(("-", ":")):
        return "starts like an option or a pathspec"
    # Attributes decide how git shows and merges every other file.
    if any(
        part.split(":")[0].rstrip(" .").lower() in {".gitattributes", "gitatt~1"}
        for part in path.split("/")
    ):
        return "names .gitattributes, which is git's own"
    try:
        check_path(path, "")
    except UserError as error:
        return error.what
    return None


def list_parents(path: str) -> list[str]:
    """Return the folders above a path, from the top."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]
