"""The accelerators that an image can be made for."""

from __future__ import annotations

from typing import Final, Literal, get_args

Accelerator = Literal["cpu", "cuda12", "cuda13"]  # a CPU, or GPUs of this CUDA version
ACCELERATORS: Final[tuple[Accelerator, ...]] = get_args(Accelerator)
NEWEST_CUDA: Final[Accelerator] = "cuda13"
