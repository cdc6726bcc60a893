"""Read the tree in a file that flax.serialization wrote, without Flax and without the values.

The file has one tree in the format MessagePack. An array in it is an extension of type 1, which has
the shape, the name of the type and the values. An array of more than 1 GB is split into several: a
map with the key of `_SPLIT_ARRAY`. Nothing in the file can load or run code.

Formats: https://github.com/msgpack/msgpack/blob/master/spec.md, and flax/serialization.py.

The package `msgpack` is not used: it reads a whole file into memory.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rosetta.convert.config_fields import shorten_value
from rosetta.convert.stored_array import StoredArray, parse_dtype
from rosetta.core.errors import DAMAGED, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_SPLIT_ARRAY = "__msgpack_chunked_array__"
_ARRAY_EXTENSION, _COMPLEX_EXTENSION, _SCALAR_EXTENSION = 1, 2, 3
# Limits far above any checkpoint. A damaged file cannot make the reader take much memory.
_LARGEST_DEPTH = 64
_LARGEST_COUNT = 1_000_000  # values in the tree
_LARGEST_TEXT = 1 << 20  # bytes
_COPY_AGAIN = "copy the checkpoint again"
_NUMBER_FORMATS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# Code -> what follows, and the format of its length.
_LENGTH_FORMATS = {
    0xC4: ("bytes", ">B"),
    0xC5: ("bytes", ">H"),
    0xC6: ("bytes", ">I"),
    0xC7: ("extension", ">B"),
    0xC8: ("extension", ">H"),
    0xC9: ("extension", ">I"),
    0xD9: ("text", ">B"),
    0xDA: ("text", ">H"),
    0xDB: ("text", ">I"),
    0xDC: ("list", ">H"),
    0xDD: ("list", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
# Codes that have the length in themselves: the first code, the one after the last, what follows.
_SHORT_LENGTHS = ((0x80, 0x90, "map"), (0x90, 0xA0, "list"), (0xA0, 0xC0, "text"))
# Extensions of 1, 2, 4, 8 and 16 bytes.
_FIXED_EXTENSIONS = {0xD4 + power: 1 << power for power in range(5)}


class _DamagedError(Exception):
    """The file is not what flax.serialization writes."""


class _Segment(NamedTuple):
    """A contiguous part of an array's values, in the order of rows.

    Attributes:
        start: The index of the first value in the flat array.
        stop: The index after the last value.
        offset: Where the values begin in the file.
    """

    start: int
    stop: int
    offset: int


class MsgpackArray(StoredArray):
    """An array in a MessagePack file. Reading a part of it reads no other part.

    Attributes:
        segments: Where the values are in the file.
    """

    def __init__(
        self, path: Path, shape: Sequence[int], dtype: np.dtype[Any], segments: list[_Segment]
    ) -> None:
        """Make the array of segments that follow each other.

        Args:
            path: The file.
            shape: The shape of the array.
            dtype: The type of the values.
            segments: Where the values are.
        """
        super().__init__(str(path), shape, dtype, [1] * len(shape))
        self._path = path
        self.segments = segments

    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        # The bytes of a value are a dimension of their own: values in the file are not aligned.
        itemsize = self.dtype.itemsize
        sizes = [part.stop - part.start for part in block]
        values: np.ndarray[Any, Any] = np.empty(sizes, self.dtype)
        if not values.size:
            return values
        rows = block[0] if block else slice(0, 1)
        value_bytes = values.reshape(-1).view(np.uint8).reshape((*(sizes or [1]), itemsize))
        with self._path.open("rb") as file:
            for first, last, row_bytes in self._read_rows(file, rows):
                target = value_bytes[first - rows.start : last - rows.start]
                target[...] = row_bytes[(slice(None), *block[1:])]
        return values

    def _read_rows(
        self, file: IO[bytes], rows: slice
    ) -> Iterator[tuple[int, int, np.ndarray[Any, Any]]]:
        """Yield the bytes of rows: the first row, the row after the last, and the bytes.

        Args:
            file: The open file.
            rows: The rows to yield, which are the indices of the first dimension.
        """
        row_size = math.prod(self.shape[1:])
        row_shape = (*self.shape[1:], self.dtype.itemsize)
        row = rows.start
        while row < rows.stop:
            segment = next(part for part in self.segments if part.stop > row * row_size)
            last = min(rows.stop, segment.stop // row_size)
            if last > row:  # whole rows
                flat = self._map_values(file, segment, row * row_size, last * row_size)
            else:  # a row that begins in this segment and ends in a later one
                last = row + 1
                flat = np.concatenate(
                    [
                        self._map_values(
                            file,
                            part,
                            max(part.start, row * row_size),
                            min(part.stop, last * row_size),
                        )
                        for part in self.segments
                        if part.start < last * row_size and part.stop > row * row_size
                    ]
                )
            yield row, last, flat.reshape((last - row, *row_shape))
            row = last

    def _map_values(
        self, file: IO[bytes], segment: _Segment, start: int, stop: int
    ) -> np.ndarray[Any, Any]:
        """Return the bytes of values of a segment, mapped from the file.

        Args:
            file: The open file.
            segment: The segment.
            start: The index of the first value in the flat array.
            stop: The index after the last value.
        """
        offset = segment.offset + (start - segment.start) * self.dtype.itemsize
        length = (stop - start) * self.dtype.itemsize
        page_start = offset - offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            file.fileno(), offset + length - page_start, offset=page_start, access=mmap.ACCESS_READ
        )
        values: np.ndarray[Any, Any] = np.frombuffer(mapped, np.uint8, length, offset - page_start)
        return values


class ConstantArray(StoredArray):
    """A number of the tree that is not an array."""

    def __init__(self, path: Path, value: float) -> None:
        self._value: np.ndarray[Any, Any] = np.asarray(value)
        super().__init__(str(path), (), self._value.dtype, ())

    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        del block
        return self._value


def read_tree(path: Path) -> dict[str, Any]:
    """Return the tree in a file: nested dicts, with a StoredArray for each array and number.

    Other values are texts and None.

    Raises:
        UserError: The file is damaged, incomplete or not one of Flax.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        reader = _Reader(path, file, size)
        try:
            tree = reader.read_value(0)
            if not isinstance(tree, dict) or file.tell() != size:
                raise _DamagedError("the file does not have exactly one map")
            return {name: _join_arrays(path, value) for name, value in tree.items()}
        except (_DamagedError, struct.error, UnicodeDecodeError, OverflowError) as error:
            raise UserError(
                f"not a complete file of Flax (MessagePack): {error}",
                str(path),
                _COPY_AGAIN,
                kind=DAMAGED,
            ) from None


@dataclass
class _Reader:
    """Read values from a file, in the order in which they are in it.

    Attributes:
        path: The file.
        file: The open file.
        size: The bytes of the file.
        count: The number of values so far.
    """

    path: Path
    file: IO[bytes]
    size: int
    count: int = 0

    def read_value(self, depth: int) -> Any:
        """Return the next value.

        Args:
            depth: The number of lists and maps around the value.

        Raises:
            _DamagedError: The file ends too early, or has what Flax does not write.
        """
        self.count += 1
        if self.count > _LARGEST_COUNT or depth > _LARGEST_DEPTH:
            raise _DamagedError("too many values")
        code = self._read_number(">B")
        if code < 0x80 or code >= 0xE0:  # a number of one byte, with or without a sign
            return code if code < 0x80 else code - 0x100
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBER_FORMATS:
            return self._read_number(_NUMBER_FORMATS[code])
        kind, length = self._read_length(code)
        if kind == "text":
            return self._read_text(length)
        if kind == "bytes":
            return self._skip_bytes(length)
        if kind == "list":
            return [self.read_value(depth + 1) for _ in range(length)]
        return self._read_map(length, depth) if kind == "map" else self._read_array(length, depth)

    def _read_length(self, code: int) -> tuple[str, int]:
        """Return what a code announces ("map", for example) and its length.

        Raises:
            _DamagedError: There is no such code.
        """
        for first, end, kind in _SHORT_LENGTHS:
            if first <= code < end:
                return kind, code - first
        if code in _FIXED_EXTENSIONS:
            return "extension", _FIXED_EXTENSIONS[code]
        if code not in _LENGTH_FORMATS:
            raise _DamagedError(f"unknown code {code:#x}")
        kind, number_format = _LENGTH_FORMATS[code]
        return kind, self._read_number(number_format)

    def _read_bytes(self, length: int) -> bytes:
        """Return the next bytes of the file."""
        self._check_length(length)
        return self.file.read(length)

    def _check_length(self, length: int) -> None:
        """Raise _DamagedError if the file has fewer bytes left."""
        if length > self.size - self.file.tell():
            raise _DamagedError("the file is cut short")

    def _read_number(self, number_format: str) -> Any:
        """Return a number in a format of the module struct."""
        return struct.unpack(number_format, self._read_bytes(struct.calcsize(number_format)))[0]

    def _read_text(self, length: int) -> str:
        """Return a text of a number of bytes."""
        if length > _LARGEST_TEXT:
            raise _DamagedError("a text is too long")
        return self._read_bytes(length).decode()

    def _skip_bytes(self, length: int) -> range:
        """Return where the next bytes are in the file, and go on after them."""
        self._check_length(length)
        start = self.file.tell()
        self.file.seek(start + length)
        return range(start, start + length)

    def _read_map(self, length: int, depth: int) -> dict[str, Any]:
        """Return a map. `depth` is the number of lists and maps around it."""
        tree: dict[str, Any] = {}
        for _ in range(length):
            name = self.read_value(depth + 1)
            if not isinstance(name, str) or name in tree:
                raise _DamagedError(f"the name {shorten_value(name)}")
            tree[name] = self.read_value(depth + 1)
        return tree

    def _read_array(self, length: int, depth: int) -> MsgpackArray:
        """Return the array of an extension. `depth` is the number of lists and maps around it.

        Raises:
            UserError: The array has a type that is not one of numbers.
        """
        kind = self._read_number(">b")
        self._check_length(length)
        end = self.file.tell() + length
        if kind == _COMPLEX_EXTENSION:
            raise self._make_type_error("complex")
        if kind not in {_ARRAY_EXTENSION, _SCALAR_EXTENSION}:
            raise _DamagedError(f"unknown extension {kind}")
        parts = self.read_value(depth + 1)
        if self.file.tell() != end or not isinstance(parts, list) or len(parts) != 3:
            raise _DamagedError("an array is damaged")
        shape, dtype_name, place = parts
        if not isinstance(dtype_name, str) or not isinstance(place, range):
            raise _DamagedError("an array is damaged")
        try:
            dtype = parse_dtype(dtype_name)
        except ValueError:
            raise self._make_type_error(dtype_name) from None
        _check_shape(shape)
        size = math.prod(shape)
        if size * dtype.itemsize != len(place):
            raise _DamagedError("an array has another length than its shape says")
        return MsgpackArray(self.path, shape, dtype, [_Segment(0, size, place.start)])

    def _make_type_error(self, dtype_name: str) -> UserError:
        """Return the error for values that are not real numbers."""
        return UserError(
            f"values are of the type {shorten_value(dtype_name)}",
            str(self.path),
            "name a checkpoint of numbers",
            kind=UNSUPPORTED,
            value=dtype_name,
        )


def _check_shape(shape: Any) -> None:
    """Raise _DamagedError if a value is not the shape of an array."""
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise _DamagedError(f"the shape {shorten_value(shape)}")


def _join_arrays(path: Path, value: Any) -> Any:
    """Return a value of the tree with each split array as one, and numbers as arrays."""
    if isinstance(value, dict) and _SPLIT_ARRAY in value:
        return _join_array(path, value)
    if isinstance(value, dict) and not is_specification(value):
        return {name: _join_arrays(path, child) for name, child in value.items()}
    if isinstance(value, (int, float)):
        return ConstantArray(path, value)
    if isinstance(value, (list, range)):
        raise _DamagedError("a list or bytes where Flax has an array")
    return value


def is_specification(node: dict[str, Any]) -> bool:
    """Return whether a dict is T5X's description of an array that is in a folder of its own."""
    return node.keys() >= {"driver", "kvstore", "metadata"}


def _join_array(path: Path, node: dict[str, Any]) -> MsgpackArray:
    """Return the array of a map that Flax has split it into.

    Raises:
        _DamagedError: The parts do not make one array.
    """
    shape, parts = _list_values(node.get("shape")), _list_values(node.get("chunks"))
    _check_shape(shape)
    if not parts or not all(isinstance(part, MsgpackArray) for part in parts):
        raise _DamagedError("a split array is damaged")
    if len({part.dtype for part in parts}) != 1 or any(len(part.shape) != 1 for part in parts):
        raise _DamagedError("a split array is damaged")
    stops = list(itertools.accumulate(part.shape[0] for part in parts))
    if stops[-1] != math.prod(shape):
        raise _DamagedError("a split array has another length than its shape says")
    segments = [
        _Segment(stop - part.shape[0], stop, part.segments[0].offset)
        for part, stop in zip(parts, stops, strict=True)
    ]
    return MsgpackArray(path, shape, parts[0].dtype, segments)


def _list_values(node: Any) -> list[Any]:
    """Return the values of a map whose names are 0, 1, 2 and so on, as Flax writes a list.

    Raises:
        _DamagedError: The value is not such a map.
    """
    names = [str(index) for index in range(len(node))] if isinstance(node, dict) else []
    if not isinstance(node, dict) or node.keys() != set(names):
        raise _DamagedError("a split array is damaged")
    return [node[name] for name in names]
