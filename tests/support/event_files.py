"""Writes TensorBoard event files by hand, so that tests need no TensorFlow."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def chunk(field: int, payload: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(payload)) + payload


def simple(tag: str, value: float) -> bytes:
    return chunk(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(
    tag: str, dtype: int, *, content: bytes = b"", packed: tuple[int, bytes] | None = None
) -> bytes:
    body = varint(1 << 3) + varint(dtype) + chunk(2, b"")
    if content:
        body += chunk(4, content)
    if packed:
        body += chunk(*packed)
    return chunk(1, tag.encode()) + chunk(8, body)


def record(step: int, wall_time: float, *values: bytes) -> bytes:
    event = varint(1 << 3 | 1) + struct.pack("<d", wall_time) + varint(2 << 3) + varint(step)
    event += chunk(5, b"".join(chunk(1, value) for value in values))
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def version() -> bytes:
    """The first record of every file: no summary, but a string."""
    event = varint(1 << 3 | 1) + struct.pack("<d", 1.0) + chunk(3, b"brain.Event:2")
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as out:
        out.write(data)
