"""Scalars out of TensorBoard event files, also while they are still being written.

Read by hand, since the alternative is to import TensorFlow into a process that only watches:
TFRecord framing around Event messages, of which a handful of protobuf fields matter. Format:
tensorflow/core/util/event.proto and summary.proto.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER = struct.Struct("<QI")  # length of the record, masked CRC of the length
FOOTER_SIZE = 4  # masked CRC of the record
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
EVENT_WALL_TIME, EVENT_STEP, EVENT_SUMMARY, SUMMARY_VALUE = 1, 2, 5, 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
TENSOR_DTYPE, TENSOR_CONTENT, TENSOR_FLOATS, TENSOR_DOUBLES = 1, 4, 5, 6
FLOAT, DOUBLE, BFLOAT16 = 1, 2, 14  # TensorFlow's DataType


@dataclass(frozen=True)
class Scalar:
    """One value of one summary; `wall_time` in seconds since 1970."""

    step: int
    wall_time: float
    tag: str
    value: float


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of a TFRecord file's bytes; a last one that is still being written
    is left out.
    """
    at = 0
    while at + HEADER.size <= len(data):
        length, _ = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        at = start + length + FOOTER_SIZE
        if at > len(data):
            return
        yield data[start : start + length]


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def parse_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a protobuf message: a varint as int, everything else as its
    bytes.
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _read_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} in an event")
        yield number, message[at : at + size]
        at += size


def _decode_double(raw: int | bytes) -> float | None:
    return (
        float(struct.unpack("<d", raw[:8])[0]) if isinstance(raw, bytes) and len(raw) >= 8 else None
    )


def _decode_float(raw: int | bytes) -> float | None:
    return (
        float(struct.unpack("<f", raw[:4])[0]) if isinstance(raw, bytes) and len(raw) >= 4 else None
    )


def _decode_tensor(message: bytes) -> float | None:
    """Return the first element of a float tensor, None where it holds something else."""
    found = dict(parse_fields(message))
    content = found.get(TENSOR_CONTENT, b"")
    kind = found.get(TENSOR_DTYPE)
    if kind == FLOAT:
        return _decode_float(found.get(TENSOR_FLOATS) or content)
    if kind == DOUBLE:
        return _decode_double(found.get(TENSOR_DOUBLES) or content)
    if kind == BFLOAT16 and isinstance(content, bytes):
        return _decode_float(b"\0\0" + content[:2])
    return None


def _parse_event(event: bytes) -> Iterator[Scalar]:
    step, wall_time = 0, 0.0
    for number, value in parse_fields(event):
        if number == EVENT_STEP and isinstance(value, int):
            step = value
        elif number == EVENT_WALL_TIME:
            wall_time = _decode_double(value) or 0.0
        elif number == EVENT_SUMMARY and isinstance(value, bytes):
            for inner, summary in parse_fields(value):
                if inner != SUMMARY_VALUE or not isinstance(summary, bytes):
                    continue
                parts = dict(parse_fields(summary))
                tag, tensor = parts.get(VALUE_TAG, b""), parts.get(VALUE_TENSOR)
                scalar = (
                    _decode_tensor(tensor)
                    if isinstance(tensor, bytes)
                    else _decode_float(parts.get(VALUE_SIMPLE, 0))
                )
                if scalar is not None and isinstance(tag, bytes):
                    yield Scalar(step, wall_time, tag.decode("utf-8", "replace"), scalar)


def read_event_file(path: Path) -> list[Scalar]:
    """Return all scalars of one event file, in the order they were written."""
    return [
        scalar for record in split_records(path.read_bytes()) for scalar in _parse_event(record)
    ]


def read_scalars(directory: Path, tag: str) -> dict[int, float]:
    """Return step -> value of `tag` over all event files directly in `directory`; a later write of
    a step wins.
    """
    paths = sorted(
        directory.glob("events.out.tfevents.*"),
        key=lambda path: (path.stat().st_mtime_ns, path.name),
    )
    found = {
        scalar.step: scalar.value
        for path in paths
        for scalar in read_event_file(path)
        if scalar.tag == tag
    }
    return dict(sorted(found.items()))


def measure_speed(folder: Path, steps: list[int]) -> float | None:
    """Return steps per second between the first and the last of `steps`, by the clock of a file
    that has both; else None.
    """
    if len(steps) < 2:
        return None
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        seen: dict[int, float] = {}
        for scalar in read_event_file(path):
            seen.setdefault(scalar.step, scalar.wall_time)
        if steps[0] in seen and seen.get(steps[-1], 0.0) > seen[steps[0]]:
            return (steps[-1] - steps[0]) / (seen[steps[-1]] - seen[steps[0]])
    return None
