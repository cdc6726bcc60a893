"""Tiles of GPU kernels that write FP8, in Pallas for Triton.

A kernel computes what one device has. Pallas cannot divide a kernel over devices: the caller runs
it under `shard_map` (see `kernel_placement`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

if TYPE_CHECKING:
    from collections.abc import Sequence

# A tile's sides are powers of two, and FP8 products need multiples of 16.
ROW_TILES, FEATURE_TILES = (128, 64, 32, 16), (64, 32, 16)
# Triton computes positions as int32.
MOST_ELEMENTS = 2**31 - 1
_WARPS = 8


def has_tiles(rows: int, features: int) -> bool:
    """Return whether tiles cover an array [rows, features]."""
    return rows % ROW_TILES[-1] == 0 and features % FEATURE_TILES[-1] == 0


def choose_tile(rows: int, features: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and features of a tile, and the number of tiles along both."""
    row_tile = next(size for size in ROW_TILES if rows % size == 0)
    feature_tile = next(size for size in FEATURE_TILES if features % size == 0)
    return (row_tile, feature_tile), (rows // row_tile, features // feature_tile)


def block_scales(scales: Sequence[Any]) -> list[Any]:
    """Return the only block of each scale, float32 [1]."""
    return [pl.BlockSpec((1,), lambda *_position: (0,)) for _ in scales]


def make_compiler_params() -> Any:
    """Return the settings of the compiler."""
    return triton.CompilerParams(num_warps=_WARPS, num_stages=1)


# Triton's maximum and minimum drop NaN, unlike XLA's. The next two functions keep it.


def quantise_tile(x: Any, scale: Any, dtype: Any) -> Any:
    """Return what `fp8.quantise_tensor` returns, for a float32 tile."""
    largest = float(jnp.finfo(dtype).max)
    scaled = x / scale
    clipped = jnp.where(scaled > largest, largest, jnp.where(scaled < -largest, -largest, scaled))
    return clipped.astype(dtype)


def compute_tile_amax(x: Any) -> Any:
    """Return the largest absolute value of a float32 tile, NaN if it has a NaN."""
    # Of non-negative numbers, the order of the bits is that of the values; NaN is above infinity.
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    return lax.bitcast_convert_type(jnp.max(bits), jnp.float32)
