"""An array in a file or a folder, of which a caller reads one part at a time.

The modules of formats have the classes: `zarr_arrays` and `msgpack_file`.
"""

from __future__ import annotations

import abc
import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class StoredArray(abc.ABC):
    """An array whose values are read when they are asked for, and not before.

    Attributes:
        where: The file or the folder that has the array, for errors.
        shape: The length of each dimension.
        dtype: The type of the values.
        chunk_shape: The shape of the blocks that are read as a whole. A part that has less of a
            block costs as much as the whole block.
    """

    def __init__(
        self, where: str, shape: Sequence[int], dtype: np.dtype[Any], chunk_shape: Sequence[int]
    ) -> None:
        self.where = where
        self.shape = tuple(shape)
        self.dtype = dtype
        self.chunk_shape = tuple(chunk_shape)

    @property
    def largest_read(self) -> int:
        """The bytes of memory that reading a single value takes: those of one block."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def read(self, selection: tuple[slice, ...] | None = None) -> np.ndarray[Any, Any]:
        """Return a part of the array in its own type.

        Args:
            selection: A slice for each of the first dimensions, without a step. The other
                dimensions are read in full. None reads the whole array.

        Raises:
            UserError: The file of the values is missing or damaged.
            ValueError: There are more slices than dimensions, or a slice has a step.
        """
        slices = selection or ()
        if len(slices) > len(self.shape) or any(part.step not in {None, 1} for part in slices):
            raise ValueError(f"{selection} of an array of {self.shape}")
        full = (*slices, *[slice(None)] * (len(self.shape) - len(slices)))
        bounds = [part.indices(size) for part, size in zip(full, self.shape, strict=True)]
        return self._read_block(tuple(slice(start, max(start, stop)) for start, stop, _ in bounds))

    @abc.abstractmethod
    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return the values of a block. It has a slice of two numbers for each dimension."""


def parse_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type of a name, for example "float32", "<f4" or "bfloat16".

    Raises:
        ValueError: There is no such type of numbers.
    """
    extended = getattr(ml_dtypes, name, None)
    try:
        dtype = np.dtype(extended if isinstance(extended, type) else name)
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"{name!r} is not the name of a type") from None
    if extended is None and dtype.kind not in "biuf":
        raise ValueError(f"{name!r} is not a type of numbers")
    return dtype
