"""Convert tensors between float32, bfloat16 and float16, and count the values that change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rosetta.convert.torch_file import BFLOAT16
from rosetta.core.errors import TOO_BIG, UserError

DTYPES = {"float32": np.dtype("<f4"), "bfloat16": BFLOAT16, "float16": np.dtype("<f2")}


@dataclass
class Cast:
    """A function that converts tensors to one type.

    Attributes:
        dtype: The type.
        rounded: The number of values so far that changed, apart from NaN.
    """

    dtype: np.dtype[Any]
    rounded: int = 0

    def __call__(self, name: str, tensor: Any) -> Any:
        """Return the tensor in the type.

        Args:
            name: The name of the tensor, for the error.
            tensor: A NumPy array of one of DTYPES.

        Raises:
            UserError: A finite value would become infinite.
        """
        if tensor.dtype == self.dtype:
            return tensor
        with np.errstate(over="ignore"):
            converted = tensor.astype(self.dtype)
        half_types = {DTYPES["bfloat16"], DTYPES["float16"]}
        is_narrower = converted.dtype.itemsize < tensor.dtype.itemsize
        if is_narrower or {converted.dtype, tensor.dtype} == half_types:
            before, after = tensor.astype(np.float32), converted.astype(np.float32)
            if np.any(np.isinf(after) & np.isfinite(before)):
                raise UserError(
                    f"{name} has values beyond what {self.dtype.name} can hold",
                    "--dtype",
                    "give bfloat16 or float32",
                    kind=TOO_BIG,
                    value=name,
                )
            self.rounded += int(np.count_nonzero((after != before) & ~np.isnan(before)))
        return converted


def view_as_bits(tensor: Any) -> Any:
    """Return the bits of a tensor's values as unsigned integers of the same size.

    Comparing them finds each changed bit, also in NaN and in zeros.
    """
    return np.ascontiguousarray(tensor).view(f"u{tensor.dtype.itemsize}")
