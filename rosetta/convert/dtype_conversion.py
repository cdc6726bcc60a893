"""Numbers of one type as another's, with a count of those that changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rosetta.convert.torch_file import BFLOAT16
from rosetta.core.errors import TOO_BIG, UserError

DTYPES = {"float32": np.dtype("<f4"), "bfloat16": BFLOAT16, "float16": np.dtype("<f2")}


@dataclass
class Cast:
    """Casts tensors to `dtype`.

    Attributes:
      rounded: how many values so far are not what they were.
    """

    dtype: np.dtype[Any]
    rounded: int = 0

    def __call__(self, name: str, tensor: Any) -> Any:
        """Return the tensor in `dtype`. UserError where a finite value would become infinite."""
        if tensor.dtype == self.dtype:
            return tensor
        with np.errstate(over="ignore"):
            made = tensor.astype(self.dtype)
        if made.dtype.itemsize < tensor.dtype.itemsize or {made.dtype, tensor.dtype} == {
            DTYPES["bfloat16"],
            DTYPES["float16"],
        }:
            wide, back = tensor.astype(np.float32), made.astype(np.float32)
            if np.any(np.isinf(back) & np.isfinite(wide)):
                raise UserError(
                    f"{name} has values beyond what {self.dtype.name} can hold",
                    "--dtype",
                    "give bfloat16 or float32",
                    kind=TOO_BIG,
                    value=name,
                )
            self.rounded += int(np.count_nonzero((back != wide) & ~np.isnan(wide)))
        return made


def view_as_bits(tensor: Any) -> Any:
    """Return a tensor's values as whole numbers, so that a comparison finds each changed bit, of
    NaN and of zeros, too.
    """
    return np.ascontiguousarray(tensor).view(f"u{tensor.dtype.itemsize}")
