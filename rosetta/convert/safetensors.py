"""Files of tensors in the safetensors layout: a length, a header in JSON, the tensors' bytes.

The `safetensors` package has no bfloat16 for NumPy, and wants all tensors of a file in memory to
write it.
Layout: https://github.com/huggingface/safetensors (Format).
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert.output_folder import reject_duplicate_fields
from rosetta.convert.torch_file import BFLOAT16, StoredTensor
from rosetta.core.errors import DAMAGED, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DTYPES = {"BF16": BFLOAT16, "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_HEADER_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000  # bytes, as the format allows


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return a file's tensors by name.

    UserError where it is no whole such file or holds another type of number.
    """
    try:
        with path.open("rb") as file:
            (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
            if length > _LARGEST_HEADER:
                raise ValueError
            header = json.loads(file.read(length), object_pairs_hook=reject_duplicate_fields)
        header.pop("__metadata__", None)
        ranges = list[tuple[int, int]]()
        found, held = {}, path.stat().st_size - _HEADER_LENGTH.size - length
        for name, about in header.items():
            if about["dtype"] not in DTYPES:
                raise UserError(
                    f"{name} is in {about['dtype']}",
                    str(path),
                    f"give weights in one of {', '.join(DTYPES)}",
                    kind=UNSUPPORTED,
                    value=about["dtype"],
                )
            dtype, size = DTYPES[about["dtype"]], tuple(about["shape"])
            start, end = about["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in (*size, start, end)):
                raise ValueError
            if (
                not 0 <= start <= end <= held
                or end - start != math.prod(size) * dtype.itemsize
                or not all(size)
            ):
                raise ValueError
            strides = tuple(math.prod(size[place + 1 :]) for place in range(len(size)))
            found[name] = StoredTensor(
                str(path), _HEADER_LENGTH.size + length + start, dtype, 0, size, strides
            )
            ranges.append((start, end))
        # The format wants every byte to belong to one tensor: what lies between or behind them
        # would be dropped.
        if [start for start, _ in sorted(ranges)] + [held] != [
            0,
            *(end for _, end in sorted(ranges)),
        ]:
            raise ValueError
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
    return found


class Writer:
    """Writes a file of tensors: first all names and sizes, then the tensors in that order."""

    def __init__(
        self, path: Path, sizes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]
    ) -> None:
        kind = next(name for name, each in DTYPES.items() if each == dtype)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        place = 0
        for name, size in sizes.items():
            end = place + math.prod(size) * dtype.itemsize
            header[name] = {"dtype": kind, "shape": list(size), "data_offsets": [place, end]}
            place = end
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self.file, self.dtype, self.sizes = path.open("wb"), dtype, iter(sizes.items())
        self.file.write(_HEADER_LENGTH.pack(len(encoded)) + encoded)

    def add(self, name: str, tensor: Any) -> None:
        """Write the next tensor."""
        expected = next(self.sizes)
        if expected != (name, tensor.shape) or tensor.dtype != self.dtype:
            raise ValueError(f"{name} {tensor.shape} {tensor.dtype} comes where {expected} is due")
        self.file.write(memoryview(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1)))

    def close(self) -> None:
        """End the file."""
        self.file.close()
