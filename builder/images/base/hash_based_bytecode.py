"""Convert the timestamp-based bytecode of a base image to hash-based bytecode (PEP 552).

Timestamp-based bytecode stores the modification time of its source. A layer changes the
modification time of every file, so Python would ignore such bytecode.
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

# Increase this number when a change of the code gives another layer for the same input. The number
# is part of the cache keys of these layers.
RULES_VERSION = 1

_BYTECODE_PATH = re.compile(
    r"((?:.*/)?)__pycache__/([^/]+?)\.[a-z]+-?[0-9]+[a-z]?(?:\.opt-\w+)?\.pyc"
)
# Magic number, flags (0: timestamp-based), modification time and size of the source.
_TIMESTAMP_HEADER = struct.Struct("<4sIII")
# Magic number, flags, hash of the source.
_HASH_HEADER = struct.Struct("<4sIQ")
# Hash-based, and Python checks the hash on import, so that it notices an edited source.
_CHECKED_HASH_FLAGS = 0b11
_UINT32_MASK = 0xFFFFFFFF  # a header has the lowest 32 bits of the time and of the size


def convert_bytecode(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield the entries of a layer, with the bytecode in `__pycache__` made hash-based.

    Bytecode that does not match its source is left out, because Python would not use it in the
    base either. Bytecode whose source is in another layer is left out too. Python compiles these
    sources again.

    Args:
        entries: Sorted by path, as `tar_file.spool_tar` yields them.
    """
    entries_by_path = {entry.path: entry for entry in entries}
    removed_paths: set[str] = set()
    for entry in entries:
        if entry.kind == "hard" and entry.target in removed_paths:
            continue  # a hard link to a file that is left out
        match = _BYTECODE_PATH.fullmatch(entry.path)
        if match is None or entry.kind != "file" or not _is_timestamp_based(entry):
            yield entry
            continue
        source = entries_by_path.get(f"{match[1]}{match[2]}.py")
        if source is not None and source.kind == "hard":
            source = entries_by_path.get(source.target)
        if source is not None and source.kind == "file" and _matches_source(entry, source):
            yield _make_hash_based(entry, source)
        else:
            removed_paths.add(entry.path)


def _read_header(entry: Entry) -> bytes:
    """Return the first bytes of a file, as many as a bytecode header has, or the whole file."""
    size = _TIMESTAMP_HEADER.size
    return read_content(replace(entry, size=min(entry.size, size)))[:size]


def _is_timestamp_based(entry: Entry) -> bool:
    """Return whether a file is timestamp-based bytecode."""
    header = _read_header(entry)
    is_complete = len(header) == _TIMESTAMP_HEADER.size
    return is_complete and header[2:4] == b"\r\n" and header[4:8] == bytes(4)


def _matches_source(entry: Entry, source: Entry) -> bool:
    """Return whether timestamp-based bytecode has the modification time and size of a source."""
    _, _, mtime, size = _TIMESTAMP_HEADER.unpack(_read_header(entry))
    return (mtime, size) == (source.mtime & _UINT32_MASK, source.size & _UINT32_MASK)


def _make_hash_based(entry: Entry, source: Entry) -> Entry:
    """Return timestamp-based bytecode as hash-based bytecode of the same source."""
    data = read_content(entry)
    magic = data[:4]
    source_hash = _imp.source_hash(int.from_bytes(magic, "little"), read_content(source))
    header = _HASH_HEADER.pack(magic, _CHECKED_HASH_FLAGS, int.from_bytes(source_hash, "little"))
    code = data[_TIMESTAMP_HEADER.size :]
    return replace(entry, source="", offset=0, data=header + code)
