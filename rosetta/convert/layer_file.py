"""Decode an array of stacked layers once, into a file with one layer after another.

T5X's scanned networks store all layers of a kernel in one array, whose blocks have values of many
layers. To read one layer, all blocks have to be decoded. So the conversion of each layer would
decode the whole array.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert.stored_array import StoredArray

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 1 << 26  # that are decoded at once, unless a block of the array is larger


class LayerFile:
    """The layers of an array in a file, which is written when a layer is first read.

    Attributes:
        array: The array.
        axis: The dimension of the layers.
    """

    def __init__(self, array: StoredArray, axis: int, path: Path) -> None:
        """Describe the file; nothing is read or written.

        Args:
            array: The array.
            axis: The dimension of the layers.
            path: The file to write.
        """
        self.array = array
        self.axis = axis
        self._path = path
        self._is_written = False
        shape = list(array.shape)
        layer_count = shape.pop(axis)
        self._shape = (layer_count, *shape)

    def open_layer(self, layer: int) -> StoredArray:
        """Return one layer as an array.

        Raises:
            UserError: A file of the array is missing or damaged.
        """
        if not self._is_written:
            self._write()
            self._is_written = True
        return _Layer(self.array, self._path, self._shape, layer)

    def remove(self) -> None:
        """Remove the file. The next layer that is read writes it again."""
        self._path.unlink(missing_ok=True)
        self._is_written = False

    def _write(self) -> None:
        """Decode the array into the file."""
        with self._path.open("wb") as file:
            file.truncate(math.prod(self._shape) * self.array.dtype.itemsize)
            for block in self._list_blocks():
                values = np.moveaxis(self.array.read(block), self.axis, 0)
                starts = [part.start for part in block]
                starts.insert(0, starts.pop(self.axis))
                _write_block(file.fileno(), self._shape, starts, values)

    def _list_blocks(self) -> Iterator[tuple[slice, ...]]:
        """Yield blocks of the array that are a few whole blocks of its files."""
        shape, block = self.array.shape, list(self.array.chunk_shape)
        for axis in reversed(range(len(shape))):
            while block[axis] < shape[axis]:
                if 2 * math.prod(block) * self.array.dtype.itemsize > _BLOCK_BYTES:
                    break
                block[axis] *= 2
        starts = [range(0, size, step) for size, step in zip(shape, block, strict=True)]
        for start in itertools.product(*starts):
            yield tuple(
                slice(first, min(first + step, size))
                for first, step, size in zip(start, block, shape, strict=True)
            )


class _Layer(StoredArray):
    """One layer in the file."""

    def __init__(self, array: StoredArray, path: Path, shape: tuple[int, ...], layer: int) -> None:
        super().__init__(array.where, shape[1:], array.dtype, (1,) * (len(shape) - 1))
        self._path, self._file_shape, self._layer = path, shape, layer

    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        bits = _map_file(self._path, self._file_shape, self.dtype, "r")
        values: np.ndarray[Any, Any] = np.array(bits[(self._layer, *block)]).view(self.dtype)
        return values


def _write_block(
    descriptor: int, shape: tuple[int, ...], starts: list[int], values: np.ndarray[Any, Any]
) -> None:
    """Write a block of an array into its file, one run of neighbouring numbers after another.

    A map of the file would do the same, but all pages that the block touches would be in memory.

    Args:
        descriptor: The open file.
        shape: The shape of the array.
        starts: The index of the block's first value.
        values: The values of the block.
    """
    axis = len(shape) - 1  # the last dimension that the block does not have in full
    while axis > 0 and values.shape[axis] == shape[axis]:
        axis -= 1
    size = values.dtype.itemsize
    for index in np.ndindex(values.shape[:axis]):
        place = [start + number for start, number in zip(starts, (*index, 0), strict=False)]
        run_start = 0
        for number, length in zip((*place, *[0] * (len(shape) - len(place))), shape, strict=True):
            run_start = run_start * length + number
        os.pwrite(descriptor, values[index].tobytes(), run_start * size)


def _map_file(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], mode: Any) -> Any:
    """Return the numbers in a file as whole numbers of the same width, which NumPy can map."""
    return np.memmap(path, np.dtype(f"u{dtype.itemsize}"), mode, shape=shape)
