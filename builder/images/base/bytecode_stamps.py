"""Tie the bytecode of a base to the hash of its source instead of the time.

Every file in a layer gets another time than it had, so bytecode that is valid by time would be
ignored.
"""

from __future__ import annotations

import _imp
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.images.base.root_file_system import read_content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.images.oci.tar_entry import Entry

# Counts up whenever the same layer would come out differently. It is part of the keys of such
# layers.
RULES_VERSION = 1

_BYTECODE_PATH = re.compile(
    r"((?:.*/)?)__pycache__/([^/]+?)\.[a-z]+-?[0-9]+[a-z]?(?:\.opt-\w+)?\.pyc"
)
_HEAD = struct.Struct("<4sIII")  # magic number, 0 for "by time", the source's time and size
_BY_HASH = struct.Struct("<4sIQ")  # magic number, flags, the source's hash
_CHECKED = 0b11  # valid by hash, and Python compares the hash on import, so an edit counts


def tie_to_hashes(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries of a layer, with the bytecode in `__pycache__` tied to its source's hash.

    Bytecode that Python would not use in the base is left out, and so is bytecode whose source is
    in another layer. Python then compiles that source again.

    Args:
        entries: Sorted by path, as `tar_file.spool_tar` yields them.
    """
    by_path = {entry.path: entry for entry in entries}
    left_out: set[str] = set()
    for entry in entries:
        match = _BYTECODE_PATH.fullmatch(entry.path)
        if entry.kind == "hard" and entry.target in left_out:
            continue
        if match is None or entry.kind != "file" or not _is_by_time(entry):
            yield entry
            continue
        source = by_path.get(f"{match[1]}{match[2]}.py")
        if source is not None and source.kind == "hard":
            source = by_path.get(source.target)
        if source is not None and source.kind == "file" and _matches_source(entry, source):
            yield _tie_to_hash(entry, source)
        else:
            left_out.add(entry.path)


def _read_head(entry: Entry) -> bytes:
    return read_content(replace(entry, size=min(entry.size, _HEAD.size)))[: _HEAD.size]


def _is_by_time(entry: Entry) -> bool:
    """Return whether a file is bytecode that is valid by the time of its source."""
    head = _read_head(entry)
    return len(head) == _HEAD.size and head[2:4] == b"\r\n" and head[4:8] == bytes(4)


def _matches_source(entry: Entry, source: Entry) -> bool:
    """Return whether Python would use this bytecode for a source: equal time and size."""
    _, _, time, size = _HEAD.unpack(_read_head(entry))
    return (time, size) == (source.mtime & 0xFFFFFFFF, source.size & 0xFFFFFFFF)


def _tie_to_hash(entry: Entry, source: Entry) -> Entry:
    """Return bytecode that is valid by the hash of its source."""
    data = read_content(entry)
    magic = data[:4]
    source_hash = _imp.source_hash(int.from_bytes(magic, "little"), read_content(source))
    head = _BY_HASH.pack(magic, _CHECKED, int.from_bytes(source_hash, "little"))
    return replace(entry, source="", offset=0, data=head + data[_HEAD.size :])
