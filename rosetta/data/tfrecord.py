"""TFRecord files and tf.train.Example records read without TensorFlow.

A record is: length (uint64), masked CRC of it, the bytes, masked CRC of them, all little-endian
(tensorflow/core/lib/io/record_writer.h). An Example is a protocol buffer: features.feature is a map
from name to a list of bytes, floats or integers (tensorflow/core/example/{example,feature}.proto).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import atomic_files, home_folder
from rosetta.core.errors import DAMAGED, INVALID, UserError
from rosetta.data import bad_records, json_lines
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.data import Array

HEADER = struct.Struct("<QI")
FOOTER_BYTES = 4
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def _make_crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901 (CRC-32C, RFC 3720 appendix B.4)
        table.append(byte)
    return table


_CRC_TABLE = _make_crc_table()


def compute_masked_crc(body: bytes) -> int:
    """Return the masked CRC-32C that TFRecord files keep of a length or of a record."""
    value = 0xFFFFFFFF
    for byte in body:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def index_records(path: str) -> Array:
    """Return int64 [n, 2]: where each record's bytes begin and how many they are.

    Reads heads only. UserError where the file is cut short or is no TFRecord file: every length's
    own checksum is looked at.
    """
    found = []
    size = os.path.getsize(path)
    if size == 0:
        return np.zeros((0, 2), np.int64)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        place = 0
        while place < size:
            if place + HEADER.size > size:
                raise UserError(
                    "the file is cut short", path, "copy it again", kind=DAMAGED, value=size
                )
            length, crc = HEADER.unpack_from(body, place)
            if crc != compute_masked_crc(body[place : place + 8]):
                raise UserError(
                    f"no record begins at byte {place}",
                    path,
                    "name uncompressed TFRecord files, or copy the file again",
                    kind=INVALID,
                    value=place,
                )
            end = place + HEADER.size + length + FOOTER_BYTES
            if end > size:
                raise UserError(
                    "the file is cut short", path, "copy it again", kind=DAMAGED, value=size
                )
            found.append((place + HEADER.size, length))
            place = end
    return np.array(found, np.int64).reshape(-1, 2)


def load_index(path: str) -> Array:
    """Return `offsets(path)`, kept under rosetta's home so that a large file is walked once."""
    status = os.stat(path)
    name = hashlib.sha256(
        f"{os.path.abspath(path)}:{status.st_size}:{status.st_mtime_ns}".encode()
    ).hexdigest()[:32]
    kept = home_folder.make_home_folder() / "tfrecord-index" / f"{name}.npy"
    if kept.exists():
        with contextlib.suppress(OSError, ValueError, EOFError):  # cut short: walked again
            return np.load(kept, mmap_mode="r")
    found = index_records(path)
    # A read-only home or a full disk costs time at the next start, nothing else.
    with (
        contextlib.suppress(OSError),
        atomic_files.replace_file(kept, None) as new,
        new.open("wb") as file,
    ):
        np.save(file, found)
    return found


class Records:
    """The records of several files, by number."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self.indexes = [load_index(path) for path in paths]
        self.ends = np.cumsum([len(index) for index in self.indexes])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[int, mmap.mmap]:
        return {}

    @property
    def sizes(self) -> Array:
        """Return int64 [n]: the bytes of each record."""
        return np.concatenate([np.asarray(index[:, 1]) for index in self.indexes])

    def _split_number(self, number: int) -> tuple[int, int]:
        which = int(np.searchsorted(self.ends, number, side="right"))
        return which, number - (int(self.ends[which - 1]) if which else 0)

    def find_place(self, number: int) -> tuple[str, str]:
        """Return the file a record is in, and its place there, as in "record 3"."""
        which, within = self._split_number(number)
        return self.paths[which], f"record {within + 1:,}"

    def __getitem__(self, number: int) -> bytes:
        which, within = self._split_number(number)
        if which not in self.maps:
            with open(self.paths[which], "rb") as file:
                self.maps[which] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, length = (int(value) for value in self.indexes[which][within])
        return self.maps[which][start : start + length]

    def describe(self) -> str:
        return ";".join(
            f"{os.path.basename(path)}={len(index)}"
            for path, index in zip(self.paths, self.indexes, strict=True)
        )


def _read_varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _read_fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (field number, wire type, value) of a message."""
    place = 0
    while place < len(body):
        tag, place = _read_varint(body, place)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, place = _read_varint(body, place)
            yield number, wire, value
            continue
        if wire == BYTES:
            length, place = _read_varint(body, place)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if place + length > len(body):
            raise ValueError("a field runs past the end")
        yield number, wire, body[place : place + length]
        place += length


def _read_values(body: bytes) -> list[Any]:
    """Return the list in a Feature: bytes, floats or integers."""
    for kind, _, content in _read_fields(body):
        values: list[Any] = []
        for _, wire, value in _read_fields(content):
            if kind == 1:
                values.append(value)
            elif kind == 2:
                values += np.frombuffer(value, "<f4").tolist()
            elif wire == VARINT:
                values.append(value - (1 << 64) if value >> 63 else value)
            else:
                place = 0
                while place < len(value):
                    one, place = _read_varint(value, place)
                    values.append(one - (1 << 64) if one >> 63 else one)
        return values
    return []


def decode_example(body: bytes) -> dict[str, list[Any]]:
    """Return feature name -> values of a serialised tf.train.Example; ValueError where it is
    none.
    """
    found: dict[str, list[Any]] = {}
    try:
        for number, _, features in _read_fields(body):
            if number != 1:
                continue
            for entry_number, _, entry in _read_fields(features):
                if entry_number == 1:
                    parts = {part: value for part, _, value in _read_fields(entry)}
                    found[parts[1].decode()] = _read_values(parts.get(2, b""))
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, AttributeError) as error:
        raise ValueError("no tf.train.Example") from error
    return found


def parse_example(body: bytes) -> dict[str, list[Any]]:
    """Return feature name -> values of a record.

    Raises:
      RecordFault: it is not an Example.
    """
    try:
        return decode_example(body)
    except ValueError:
        raise RecordFault("not a tf.train.Example", "name files of Example records") from None


def parse_text(body: bytes, field: str, path: str) -> str:
    """Return the text feature of a file's record.

    Raises:
      RecordFault: there is none.
    """
    features = parse_example(body)
    values = features.get(field)
    if not values or not isinstance(values[0], bytes):
        raise json_lines.describe_missing_field(field, features)
    return bad_records.decode_text(values[0], path)
