"""Writes TensorBoard event files by hand, so that tests need no TensorFlow."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def encode_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode_bytes_field(field: int, payload: bytes) -> bytes:
    return encode_varint(field << 3 | 2) + encode_varint(len(payload)) + payload


def encode_simple_value(tag: str, value: float) -> bytes:
    return (
        encode_bytes_field(1, tag.encode()) + encode_varint(2 << 3 | 5) + struct.pack("<f", value)
    )


def encode_tensor_value(
    tag: str, dtype: int, *, content: bytes = b"", packed: tuple[int, bytes] | None = None
) -> bytes:
    body = encode_varint(1 << 3) + encode_varint(dtype) + encode_bytes_field(2, b"")
    if content:
        body += encode_bytes_field(4, content)
    if packed:
        body += encode_bytes_field(*packed)
    return encode_bytes_field(1, tag.encode()) + encode_bytes_field(8, body)


def encode_summary_event(step: int, wall_time: float, *values: bytes) -> bytes:
    event = (
        encode_varint(1 << 3 | 1)
        + struct.pack("<d", wall_time)
        + encode_varint(2 << 3)
        + encode_varint(step)
    )
    event += encode_bytes_field(5, b"".join(encode_bytes_field(1, value) for value in values))
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def encode_version_event() -> bytes:
    """The first record of every file: no summary, but a string."""
    event = (
        encode_varint(1 << 3 | 1) + struct.pack("<d", 1.0) + encode_bytes_field(3, b"brain.Event:2")
    )
    return struct.pack("<QI", len(event), 0) + event + b"\0\0\0\0"


def append_records(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as out:
        out.write(data)
