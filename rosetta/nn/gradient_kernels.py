"""A GPU kernel that joins gradients of several projections in FP8, in Pallas for Triton.

It reads each gradient once. It writes the joined gradients in FP8 twice, once transposed, because a
product in FP8 needs both factors with the dimension that it sums over last. It also writes the
largest absolute value of each tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from rosetta.nn import fp8, fp8_tiles

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_shape_problem(batch: int, length: int, features: int, *, parts: int) -> str:
    """Return why the kernel cannot read gradients of this size; empty if it can.

    Args:
        batch: The sequences of one device.
        length: The tokens of a sequence.
        features: The features of one gradient on one device.
        parts: The number of gradients.
    """
    if not fp8_tiles.has_tiles(length, features):
        return f"{length} tokens and {features} features are not multiples of 16"
    if parts * batch * length * features > fp8_tiles.MOST_ELEMENTS:
        return f"{parts} gradients of {batch} x {length} x {features} have 2**31 elements or more"
    return ""


def join_gradients(
    gradients: Sequence[Any], scale: Any, *, length_first: bool, interpret: bool = False
) -> Any:
    """Join gradients in FP8.

    Args:
        gradients: [batch, length, features] each.
        scale: That of the result, float32 [1].
        length_first: Whether the first result has the length before the batch.
        interpret: Compute the kernel without a GPU.

    Returns:
        The gradients / scale, float8_e5m2 [batch, length, parts, features], or with `length_first`
        [length, batch, parts, features]; the same as [parts, features, batch, length]; and the
        amaxes of the gradients, float32 [batch x row tiles, feature tiles, parts].
    """
    parts = len(gradients)
    batch, length, features = gradients[0].shape
    (rows, columns), (row_tiles, feature_tiles) = fp8_tiles.choose_tile(length, features)
    shape = (batch, length, parts, features)
    result_block = pl.BlockSpec(
        (None, rows, parts, columns), lambda text, row, column: (text, row, 0, column)
    )
    if length_first:
        shape = (length, batch, parts, features)
        result_block = pl.BlockSpec(
            (rows, None, parts, columns), lambda text, row, column: (row, text, 0, column)
        )
    gradient_block = pl.BlockSpec(
        (None, rows, columns), lambda text, row, column: (text, row, column)
    )
    return pl.pallas_call(
        join_tile,
        out_shape=[
            jax.ShapeDtypeStruct(shape, fp8.BACKWARD_DTYPE),
            jax.ShapeDtypeStruct((parts, features, batch, length), fp8.BACKWARD_DTYPE),
            jax.ShapeDtypeStruct((batch * row_tiles, feature_tiles, parts), jnp.float32),
        ],
        grid=(batch, row_tiles, feature_tiles),
        in_specs=[*[gradient_block] * parts, *fp8_tiles.block_scales([scale])],
        out_specs=[
            result_block,
            pl.BlockSpec(
                (parts, columns, None, rows), lambda text, row, column: (0, column, text, row)
            ),
            pl.BlockSpec(
                (1, 1, parts), lambda text, row, column: (text * row_tiles + row, column, 0)
            ),
        ],
        compiler_params=None if interpret else fp8_tiles.make_compiler_params(),
        interpret=interpret,
        name="join_gradients",
    )(*gradients, scale)


def join_tile(*arrays: Any) -> None:
    """Compute one tile of `join_gradients`; the arguments are its arrays in their order."""
    *gradients, scale, result, transposed, amaxes = arrays
    for part, gradient in enumerate(gradients):
        values = gradient[...].astype(jnp.float32)
        quantised = fp8_tiles.quantise_tile(values, scale[0], result.dtype)
        result[:, part, :] = quantised
        transposed[part] = quantised.T
        amaxes[0, 0, part] = fp8_tiles.compute_tile_amax(values)
