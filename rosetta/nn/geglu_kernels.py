"""GPU kernels for the gated unit of an MLP in FP8, gelu(gate) x linear, in Pallas for Triton.

Each kernel reads its operands once. It writes a result in FP8 twice, once transposed, because a
product in FP8 needs both factors with the dimension that it sums over last. It also writes the
largest absolute value of each tile. All arithmetic is in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from rosetta.nn import fp8, fp8_tiles

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_shape_problem(rows: int, features: int) -> str:
    """Return why the kernels cannot compute a unit of this size; empty if they can.

    Args:
        rows: The tokens of one device.
        features: The hidden features of one device.
    """
    if not fp8_tiles.has_tiles(rows, features):
        return f"{rows} tokens and {features} hidden features are not multiples of 16"
    if 2 * rows * features > fp8_tiles.MOST_ELEMENTS:
        return f"both halves of {rows} tokens of {features} features have 2**31 elements or more"
    return ""


def apply_geglu(
    product: Any, scales: Sequence[Any], *, transpose: bool, interpret: bool = False
) -> Any:
    """Compute the hidden features in FP8.

    Args:
        product: [rows, 2, features], the products of the quantised input with both kernels.
        scales: Those of the input, of the two kernels, and of the result, float32 [1] each.
        transpose: Whether to return what only the backward pass needs.
        interpret: Compute the kernel without a GPU.

    Returns:
        The hidden features / scales[3], float8_e4m3fn [rows, features]. With `transpose` also the
        same transposed, [features, rows], and the amaxes of the hidden features, float32
        [row tiles, feature tiles].
    """
    rows, _, features = product.shape
    tile, grid = fp8_tiles.choose_tile(rows, features)
    hidden = jax.ShapeDtypeStruct((rows, features), fp8.FORWARD_DTYPE)
    outputs, blocks = [hidden], [pl.BlockSpec(tile, lambda row, column: (row, column))]
    if transpose:
        outputs += [
            jax.ShapeDtypeStruct((features, rows), fp8.FORWARD_DTYPE),
            jax.ShapeDtypeStruct(grid, jnp.float32),
        ]
        blocks += [
            pl.BlockSpec(tile[::-1], lambda row, column: (column, row)),
            pl.BlockSpec((1, 1), lambda row, column: (row, column)),
        ]
    return pl.pallas_call(
        geglu_forward,
        out_shape=outputs,
        grid=grid,
        in_specs=[_block_parts(tile), *fp8_tiles.block_scales(scales)],
        out_specs=blocks,
        compiler_params=None if interpret else fp8_tiles.make_compiler_params(),
        interpret=interpret,
        name="geglu_forward",
    )(product, *scales)


def differentiate_geglu(
    product: Any, gradient_product: Any, scales: Sequence[Any], *, interpret: bool = False
) -> Any:
    """Compute the gradients of gate and linear in FP8.

    Args:
        product: [rows, 2, features], as for `apply_geglu`.
        gradient_product: [rows, features], the product of the quantised output gradient with the
            quantised kernel that follows.
        scales: Those of the input, of the two kernels, of the output gradient, of the kernel that
            follows, and of the result, float32 [1] each.
        interpret: Compute the kernel without a GPU.

    Returns:
        The gradients / scales[5], float8_e5m2 [rows, 2, features]; the same as [2, features, rows];
        and the amaxes of both gradients, float32 [2, row tiles, feature tiles].
    """
    rows, parts, features = product.shape
    tile, grid = fp8_tiles.choose_tile(rows, features)
    return pl.pallas_call(
        geglu_backward,
        out_shape=[
            jax.ShapeDtypeStruct(product.shape, fp8.BACKWARD_DTYPE),
            jax.ShapeDtypeStruct((parts, features, rows), fp8.BACKWARD_DTYPE),
            jax.ShapeDtypeStruct((parts, *grid), jnp.float32),
        ],
        grid=grid,
        in_specs=[
            _block_parts(tile),
            pl.BlockSpec(tile, lambda row, column: (row, column)),
            *fp8_tiles.block_scales(scales),
        ],
        out_specs=[
            _block_parts(tile),
            pl.BlockSpec((parts, *tile[::-1]), lambda row, column: (0, column, row)),
            pl.BlockSpec((parts, 1, 1), lambda row, column: (0, row, column)),
        ],
        compiler_params=None if interpret else fp8_tiles.make_compiler_params(),
        interpret=interpret,
        name="geglu_backward",
    )(product, gradient_product, *scales)


def geglu_forward(
    product: Any,
    input_scale: Any,
    gate_scale: Any,
    linear_scale: Any,
    result_scale: Any,
    result: Any,
    *others: Any,
) -> None:
    """Compute one tile of `apply_geglu`; the arguments are its arrays in their order."""
    hidden = _multiply_gate(*_read_parts(product, input_scale, (gate_scale, linear_scale)))
    quantised = fp8_tiles.quantise_tile(hidden, result_scale[0], result.dtype)
    result[...] = quantised
    if others:
        transposed, amax = others
        transposed[...] = quantised.T
        amax[0, 0] = fp8_tiles.compute_tile_amax(hidden)


def geglu_backward(
    product: Any,
    gradient_product: Any,
    input_scale: Any,
    gate_scale: Any,
    linear_scale: Any,
    gradient_scale: Any,
    kernel_scale: Any,
    result_scale: Any,
    result: Any,
    transposed: Any,
    amaxes: Any,
) -> None:
    """Compute one tile of `differentiate_geglu`; the arguments are its arrays in their order."""
    gradient = gradient_product[...].astype(jnp.float32) * gradient_scale[0] * kernel_scale[0]
    parts = _read_parts(product, input_scale, (gate_scale, linear_scale))
    _, pull_back = jax.vjp(_multiply_gate, *parts)
    for part, part_gradient in enumerate(pull_back(gradient)):
        quantised = fp8_tiles.quantise_tile(part_gradient, result_scale[0], result.dtype)
        result[:, part, :] = quantised
        transposed[part] = quantised.T
        amaxes[part, 0, 0] = fp8_tiles.compute_tile_amax(part_gradient)


def _read_parts(product: Any, input_scale: Any, kernel_scales: tuple[Any, Any]) -> list[Any]:
    """Return gate and linear of a tile, rescaled, float32 [rows, features] each."""
    return [
        product[:, part, :].astype(jnp.float32) * input_scale[0] * kernel_scale[0]
        for part, kernel_scale in enumerate(kernel_scales)
    ]


def _multiply_gate(gate: Any, linear: Any) -> Any:
    """Return gelu(gate) x linear."""
    return jax.nn.gelu(gate) * linear


def _block_parts(tile: tuple[int, int]) -> Any:
    """Return the blocks of an array [rows, 2, features]."""
    return pl.BlockSpec((tile[0], 2, tile[1]), lambda row, column: (row, 0, column))
