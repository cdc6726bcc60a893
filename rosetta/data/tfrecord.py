"""TFRecord files and tf.train.Example records, read without TensorFlow.

A record is: its length (uint64), the masked CRC of the length, its bytes, and their masked CRC, all
little-endian (tensorflow/core/lib/io/record_writer.h). An Example is a protocol buffer:
features.feature is a map from name to a list of bytes, floats or integers
(tensorflow/core/example/{example,feature}.proto). Sources of the kinds tfrecord and tfds are read
here.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import itertools
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import atomic_files, home_folder
from rosetta.core.errors import DAMAGED, INVALID, UserError
from rosetta.data import bad_records, example_messages, json_lines, reading_progress
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.data import Array

HEADER = struct.Struct("<QI")  # the length of a record and its masked CRC
FOOTER_BYTES = 4  # the masked CRC of the record
# Wire types of protocol buffers.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# Field numbers of the message Feature.
_BYTES_LIST, _FLOAT_LIST = 1, 2


def _make_crc_table() -> list[int]:
    """Return the table of CRC-32C (RFC 3720, appendix B.4) for each value of a byte."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _make_crc_table()


def compute_masked_crc(body: bytes) -> int:
    """Return the masked CRC-32C that TFRecord files store for a length or a record."""
    value = 0xFFFFFFFF
    for byte in body:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def index_records(path: str) -> Array:
    """Return where each record of a file begins and how long it is.

    Only the headers are read, and the checksum of each length is verified.

    Returns:
        int64 [n, 2]: the place of the record's first byte, and the number of its bytes.

    Raises:
        UserError: The file is cut short or is not a TFRecord file.
    """
    size = os.path.getsize(path)
    if size == 0:
        return np.zeros((0, 2), np.int64)
    cut_short = UserError("the file is cut short", path, "copy it again", kind=DAMAGED, value=size)
    index = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as body:
        place = 0
        while place < size:
            if place + HEADER.size > size:
                raise cut_short
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
                raise cut_short
            index.append((place + HEADER.size, length))
            place = end
    return np.array(index, np.int64).reshape(-1, 2)


def load_index(path: str) -> Array:
    """Return `index_records(path)`, from a cache in rosetta's home folder if it is there.

    So a large file is read through only once.

    Raises:
        UserError: See index_records.
    """
    status = os.stat(path)
    identity = f"{os.path.abspath(path)}:{status.st_size}:{status.st_mtime_ns}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    cached = home_folder.make_home_folder() / "tfrecord-index" / f"{name}.npy"
    if cached.exists():
        # If the cached file is damaged, the index is made again.
        with contextlib.suppress(OSError, ValueError, EOFError):
            return np.load(cached, mmap_mode="r")
    index = index_records(path)
    # If the home folder is read-only or the disk is full, the next start only takes longer.
    with (
        contextlib.suppress(OSError),
        atomic_files.replace_file(cached, None) as new,
        new.open("wb") as file,
    ):
        np.save(file, index)
    return index


class Records:
    """The records of several files, by number.

    Attributes:
        paths: The files.
        indexes: The index of each file, see index_records.
        ends: The number of records up to the end of each file.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        # A view without the class memmap, whose items take longer to read.
        self.indexes = [np.asarray(load_index(path)) for path in paths]
        self.ends = list(itertools.accumulate(map(len, self.indexes)))

    def __len__(self) -> int:
        """Return the number of records."""
        return self.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: another process maps the files itself."""
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[int, mmap.mmap]:
        """The files that are mapped into memory so far, by number."""
        return {}

    @property
    def sizes(self) -> Array:
        """The bytes of each record: int64 [n]."""
        return np.concatenate([np.asarray(index[:, 1]) for index in self.indexes])

    def _split_number(self, number: int) -> tuple[int, int]:
        """Return the number of the file that has a record, and the record's number in the file."""
        file_number = bisect.bisect_right(self.ends, number)
        before = self.ends[file_number - 1] if file_number else 0
        return file_number, number - before

    def find_file(self, number: int) -> str:
        """Return the file that has a record."""
        return self.paths[bisect.bisect_right(self.ends, number)]

    def find_place(self, number: int) -> tuple[str, str]:
        """Return the file that has a record, and its place in it, such as "record 3"."""
        file_number, number_in_file = self._split_number(number)
        return self.paths[file_number], f"record {number_in_file + 1:,}"

    def __getitem__(self, number: int) -> bytes:
        """Return the bytes of a record."""
        file_number, number_in_file = self._split_number(number)
        if file_number not in self.maps:
            with open(self.paths[file_number], "rb") as file:
                self.maps[file_number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, length = self.indexes[file_number][number_in_file].tolist()
        return self.maps[file_number][start : start + length]

    def report_read(self, number: int) -> None:
        """Report that a record was read, while all records are read in their order."""
        file_number, number_in_file = self._split_number(number)
        count = len(self.indexes[file_number])
        reading_progress.report_part(self.paths[file_number], number_in_file + 1, count)

    def describe(self) -> str:
        """Return the names of the files and the numbers of their records."""
        return ";".join(
            f"{os.path.basename(path)}={len(index)}"
            for path, index in zip(self.paths, self.indexes, strict=True)
        )


def _read_varint(body: bytes, place: int) -> tuple[int, int]:
    """Return the varint of a protocol buffer at a place, and the place after it."""
    value = body[place]
    if value < 0x80:  # most varints have one byte
        return value, place + 1
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def _make_signed(value: int) -> int:
    """Return a varint of 64 bits as the signed integer that it encodes."""
    return value - (1 << 64) if value >> 63 else value


def _read_fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the field number, the wire type and the value of each field of a message."""
    place, size = 0, len(body)
    while place < size:
        tag, place = _read_varint(body, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == BYTES:
            length, place = _read_varint(body, place)
        elif wire_type == VARINT:
            value, place = _read_varint(body, place)
            yield number, wire_type, value
            continue
        elif wire_type in (FIXED32, FIXED64):
            length = 4 if wire_type == FIXED32 else 8
        else:
            raise ValueError(f"{wire_type} is not a known wire type")
        if place + length > size:
            raise ValueError("a field extends past the end")
        yield number, wire_type, body[place : place + length]
        place += length


def _read_values(body: bytes) -> list[Any]:
    """Return the values of a Feature: a list of bytes, floats or integers."""
    for kind, _, content in _read_fields(body):
        values: list[Any] = []
        for _, wire_type, value in _read_fields(content):
            if kind == _BYTES_LIST:
                values.append(value)
            elif kind == _FLOAT_LIST:
                values += np.frombuffer(value, "<f4").tolist()
            elif wire_type == VARINT:
                values.append(_make_signed(value))
            else:
                values += _read_packed_integers(value)
        return values
    return []


def _read_packed_integers(body: bytes) -> list[int]:
    """Return the integers of a packed Int64List."""
    values = []
    place = 0
    while place < len(body):
        value, place = _read_varint(body, place)
        values.append(_make_signed(value))
    return values


def decode_example(body: bytes) -> dict[str, list[Any]]:
    """Return the features of a serialised tf.train.Example: name -> values.

    Raises:
        ValueError: The bytes are not an Example.
    """
    example: dict[str, list[Any]] = {}
    try:
        for number, _, features in _read_fields(body):
            if number != 1:
                continue
            for entry_number, _, entry in _read_fields(features):
                if entry_number == 1:
                    parts = {part: value for part, _, value in _read_fields(entry)}
                    example[parts[1].decode()] = _read_values(parts.get(2, b""))
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, AttributeError) as error:
        raise ValueError("not a tf.train.Example") from error
    return example


def parse_example(body: bytes) -> dict[str, list[Any]]:
    """Return the features of a record: name -> values.

    Raises:
        RecordFault: The record is not an Example.
    """
    try:
        return decode_example(body)
    except ValueError:
        raise RecordFault("not a tf.train.Example", "name files of Example records") from None


def parse_text(body: bytes, field: str, path: str) -> str:
    """Return the text of a record.

    Args:
        body: The record.
        field: The feature that has the text.
        path: The file, for warnings.

    Raises:
        RecordFault: The record is not an Example, or has no text in the feature.
    """
    text = example_messages.find_bytes(body, field)
    if text is None:
        features = parse_example(body)
        values = features.get(field)
        if not values or not isinstance(values[0], bytes):
            raise json_lines.describe_missing_field(field, features)
        text = values[0]
    return bad_records.decode_text(text, path)
