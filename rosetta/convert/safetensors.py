"""Read and write files of tensors in the safetensors format.

A file has the length of the header, the header in JSON, and the bytes of the tensors. Format:
https://github.com/huggingface/safetensors (section "Format").

The package `safetensors` is not used: with NumPy it has no bfloat16, and it writes a file only from
tensors that are all in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert.json_documents import reject_duplicate_fields
from rosetta.convert.torch_file import BFLOAT16, StoredTensor
from rosetta.core.errors import DAMAGED, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

DTYPES = {"BF16": BFLOAT16, "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_HEADER_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000  # bytes, the limit of the format


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, without reading their values.

    Raises:
        UserError: The file is damaged or incomplete, or has a type that is not in DTYPES.
    """
    try:
        with path.open("rb") as file:
            (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
            if length > _LARGEST_HEADER:
                raise ValueError
            header = json.loads(file.read(length), object_pairs_hook=reject_duplicate_fields)
        header.pop("__metadata__", None)
        first_byte = _HEADER_LENGTH.size + length
        data_size = path.stat().st_size - first_byte
        tensors = {}
        ranges = list[tuple[int, int]]()
        for name, entry in header.items():
            tensors[name] = _parse_entry(path, name, entry, first_byte)
            start, end = entry["data_offsets"]
            if end > data_size:
                raise ValueError
            ranges.append((start, end))
        _check_ranges(ranges, data_size)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
        RecursionError,
        MemoryError,
        OverflowError,
    ):
        raise UserError(
            "not a complete safetensors file", str(path), "download or copy it again", kind=DAMAGED
        ) from None
    return tensors


def _parse_entry(path: Path, name: str, entry: Any, first_byte: int) -> StoredTensor:
    """Return a tensor from its entry in the header.

    Args:
        path: The file.
        name: The name of the tensor.
        entry: The entry.
        first_byte: Where the data begin in the file.

    Raises:
        UserError: The type is not in DTYPES.
        ValueError: The entry contradicts itself.
    """
    if entry["dtype"] not in DTYPES:
        raise UserError(
            f"{name} is in {entry['dtype']}",
            str(path),
            f"give weights in one of {', '.join(DTYPES)}",
            kind=UNSUPPORTED,
            value=entry["dtype"],
        )
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise ValueError
    if end - start != math.prod(shape) * dtype.itemsize or not all(shape):
        raise ValueError
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return StoredTensor(str(path), first_byte + start, dtype, 0, shape, strides)


def _check_ranges(ranges: Iterable[tuple[int, int]], data_size: int) -> None:
    """Raise ValueError if a byte of the data does not belong to exactly one tensor.

    The format demands this. Bytes of no tensor would be lost in a conversion.
    """
    expected_start = 0
    for start, end in sorted(ranges):
        if start != expected_start:
            raise ValueError
        expected_start = end
    if expected_start != data_size:
        raise ValueError


class Writer:
    """Write a file: the header with all names and shapes first, then one tensor after the other.

    Attributes:
        digest: The SHA-256 of what has been written.
    """

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]
    ) -> None:
        """Open the file and write the header.

        Args:
            path: The file.
            shapes: The shape of each tensor by name, in the order in which they will be added.
            dtype: The type of all tensors.
        """
        dtype_name = next(name for name, known in DTYPES.items() if known == dtype)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": dtype_name, "shape": list(shape), "data_offsets": [start, end]}
            start = end
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self.file, self.dtype, self.shapes = path.open("wb"), dtype, iter(shapes.items())
        self.digest = hashlib.sha256()
        self._write(_HEADER_LENGTH.pack(len(encoded)) + encoded)

    def _write(self, data: Any) -> None:
        """Write bytes, and add them to the digest."""
        self.file.write(data)
        self.digest.update(data)

    def add(self, name: str, tensor: Any) -> None:
        """Write the next tensor.

        Raises:
            ValueError: The tensor is not the one that the header has next.
        """
        self.add_blocks(name, tensor.shape, [tensor])

    def add_blocks(self, name: str, shape: tuple[int, ...], blocks: Iterable[Any]) -> None:
        """Write the next tensor, in blocks of its rows.

        Args:
            name: The name of the tensor.
            shape: The shape of the tensor.
            blocks: Arrays with consecutive rows of the tensor.

        Raises:
            ValueError: The tensor is not the one that the header has next, or is not complete.
        """
        expected = next(self.shapes)
        if expected != (name, shape):
            raise ValueError(f"got {name} {shape}, expected {expected}")
        rows = 0
        for block in blocks:
            if block.dtype != self.dtype or block.shape[1:] != shape[1:]:
                raise ValueError(f"got {name} {block.shape} {block.dtype}, expected {expected}")
            rows += len(block)
            self._write(memoryview(np.ascontiguousarray(block).view(np.uint8).reshape(-1)))
        if rows != shape[0]:
            raise ValueError(f"got {rows} rows of {name}, expected {expected}")

    def close(self) -> None:
        """Bring the file to the disk, and close it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
