"""Read scalars from TensorBoard event files, also while a framework still writes them.

The self-test reads its losses with this module. TensorFlow can read such files too, but takes long
to import. A file is a TFRecord file of Event messages (protobuf), of which a few fields matter. The
formats are those of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER = struct.Struct("<QI")  # The length of the record, and a masked CRC of the length.
FOOTER_SIZE = 4  # bytes: a masked CRC of the record
# Wire types of protobuf.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# Field numbers of Event, Summary, Summary.Value and TensorProto.
EVENT_WALL_TIME, EVENT_STEP, EVENT_SUMMARY, SUMMARY_VALUE = 1, 2, 5, 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR = 1, 2, 8
TENSOR_DTYPE, TENSOR_CONTENT, TENSOR_FLOATS, TENSOR_DOUBLES = 1, 4, 5, 6
# Values of TensorFlow's enum DataType.
FLOAT, DOUBLE, BFLOAT16 = 1, 2, 14


@dataclass(frozen=True)
class Scalar:
    """One value of one summary.

    Attributes:
        step: The training step.
        wall_time: When it was written, in seconds since 1970.
        tag: The name of the summary.
        value: The value.
    """

    step: int
    wall_time: float
    tag: str
    value: float


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield the complete records in the bytes of a TFRecord file.

    A last record that is still being written is left out.
    """
    position = 0
    while position + HEADER.size <= len(data):
        length, _ = HEADER.unpack_from(data, position)
        start = position + HEADER.size
        position = start + length + FOOTER_SIZE
        if position > len(data):
            return
        yield data[start : start + length]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def parse_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a protobuf message.

    The value of a varint is an int. That of any other field is its bytes.

    Raises:
        ValueError: A field has a wire type that events do not have.
    """
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire_type == BYTES:
            size, position = _read_varint(message, position)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} in an event")
        yield number, message[position : position + size]
        position += size


def _decode_double(raw: int | bytes) -> float | None:
    """Return the float64 at the beginning of a field's bytes; None if there is none."""
    if not isinstance(raw, bytes) or len(raw) < 8:
        return None
    return float(struct.unpack("<d", raw[:8])[0])


def _decode_float(raw: int | bytes) -> float | None:
    """Return the float32 at the beginning of a field's bytes; None if there is none."""
    if not isinstance(raw, bytes) or len(raw) < 4:
        return None
    return float(struct.unpack("<f", raw[:4])[0])


def _decode_tensor(message: bytes) -> float | None:
    """Return the first element of a TensorProto of floats; None for other tensors."""
    fields = dict(parse_fields(message))
    content = fields.get(TENSOR_CONTENT, b"")
    dtype = fields.get(TENSOR_DTYPE)
    if dtype == FLOAT:
        return _decode_float(fields.get(TENSOR_FLOATS) or content)
    if dtype == DOUBLE:
        return _decode_double(fields.get(TENSOR_DOUBLES) or content)
    if dtype == BFLOAT16 and isinstance(content, bytes):
        # A bfloat16 is the upper half of a float32.
        return _decode_float(b"\0\0" + content[:2])
    return None


def _parse_event(event: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an Event message."""
    step, wall_time = 0, 0.0
    for number, value in parse_fields(event):
        if number == EVENT_STEP and isinstance(value, int):
            step = value
        elif number == EVENT_WALL_TIME:
            wall_time = _decode_double(value) or 0.0
        elif number == EVENT_SUMMARY and isinstance(value, bytes):
            for tag, scalar in _parse_summary(value):
                yield Scalar(step, wall_time, tag, scalar)


def _parse_summary(summary: bytes) -> Iterator[tuple[str, float]]:
    """Yield the tag and value of each scalar of a Summary message."""
    for number, message in parse_fields(summary):
        if number != SUMMARY_VALUE or not isinstance(message, bytes):
            continue
        fields = dict(parse_fields(message))
        tag, tensor = fields.get(VALUE_TAG, b""), fields.get(VALUE_TENSOR)
        if isinstance(tensor, bytes):
            scalar = _decode_tensor(tensor)
        else:
            scalar = _decode_float(fields.get(VALUE_SIMPLE, 0))
        if scalar is not None and isinstance(tag, bytes):
            yield tag.decode("utf-8", "replace"), scalar


def read_event_file(path: Path) -> list[Scalar]:
    """Return all scalars of an event file, in the order in which they were written."""
    scalars: list[Scalar] = []
    for record in split_records(path.read_bytes()):
        scalars.extend(_parse_event(record))
    return scalars


def read_scalars(folder: Path, tag: str) -> dict[int, float]:
    """Return the value of a tag at each step, from all event files directly in a folder.

    If a step was written more than once, the last value counts.
    """
    paths = sorted(
        folder.glob("events.out.tfevents.*"),
        key=lambda path: (path.stat().st_mtime_ns, path.name),
    )
    values: dict[int, float] = {}
    for path in paths:
        for scalar in read_event_file(path):
            if scalar.tag == tag:
                values[scalar.step] = scalar.value
    return dict(sorted(values.items()))


def measure_speed(folder: Path, steps: list[int]) -> float | None:
    """Return the steps per second between the first and the last of some steps.

    The times are those of one event file in the folder or below that has both steps.

    Returns:
        None if there is no such file.
    """
    if len(steps) < 2:
        return None
    first, last = steps[0], steps[-1]
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        times: dict[int, float] = {}
        for scalar in read_event_file(path):
            times.setdefault(scalar.step, scalar.wall_time)
        if first in times and times.get(last, 0.0) > times[first]:
            return (last - first) / (times[last] - times[first])
    return None
