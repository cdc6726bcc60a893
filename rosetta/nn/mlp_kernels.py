"""GPU kernels for the elementwise part of an MLP in FP8, in Pallas for Triton.

A Unit says what that part computes. There is a kernel for each pass, which reads its operands once:

- The forward kernel writes the hidden features in FP8.
- The backward kernel writes the gradients in FP8 twice, once transposed, because a product in FP8
  needs both factors with the dimension that it sums over last. It also computes the hidden features
  again and writes their transposed copy, which only the gradient of the next kernel needs. So
  nothing but the products is kept from one pass to the other. The largest absolute values of
  everything are written for each tile.

All arithmetic is in float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from rosetta.nn import fp8, fp8_tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Unit:
    """The elementwise part of an MLP.

    Attributes:
        name: The start of the kernels' names.
        parts: The number of products that it reads.
        compute: Returns the hidden features of a tile from the parts, float32 [rows, features]
            each. With `has_bias` also from a bias [features] and the weights of the rows [rows],
            float32.
        has_bias: Whether it adds a bias to its part, and multiplies rows with weights.
    """

    name: str
    parts: int
    compute: Callable[..., Any]
    has_bias: bool = False

    @property
    def vectors(self) -> int:
        """The number of arrays that the kernels read beside the products and the scales."""
        return 2 if self.has_bias else 0


def multiply_gate(gate: Any, linear: Any) -> Any:
    """Return gelu(gate) x linear."""
    return jax.nn.gelu(gate) * linear


def activate_biased(x: Any, bias: Any, weights: Any) -> Any:
    """Return gelu(x + bias), times the weight of each row."""
    return jax.nn.gelu(x + bias[None, :]) * weights[:, None]


GEGLU = Unit("geglu", 2, multiply_gate)
GELU = Unit("gelu", 1, activate_biased, has_bias=True)


def find_shape_problem(unit: Unit, rows: int, features: int) -> str:
    """Return why the kernels cannot compute a unit of this size; empty if they can.

    Args:
        unit: The unit.
        rows: The tokens of one device.
        features: The hidden features of one device.
    """
    if not fp8_tiles.has_tiles(rows, features):
        return f"{rows} tokens and {features} hidden features are not multiples of 16"
    if unit.parts * rows * features > fp8_tiles.MOST_ELEMENTS:
        return f"{unit.parts} x {rows} tokens of {features} features have 2**31 elements or more"
    return ""


def apply_unit(
    unit: Unit,
    product: Any,
    vectors: Sequence[Any],
    scales: Sequence[Any],
    *,
    interpret: bool = False,
) -> Any:
    """Compute the hidden features in FP8.

    Args:
        unit: The unit.
        product: [rows, parts, features], the products of the quantised input with the kernels.
        vectors: The bias [features] and the weights of the rows [rows], if the unit has them.
        scales: Those of the input, of the kernels, and of the result, float32 [1] each.
        interpret: Compute the kernel without a GPU.

    Returns:
        The hidden features / the last scale, float8_e4m3fn [rows, features].
    """
    rows, _, features = product.shape
    tile, grid = fp8_tiles.choose_tile(rows, features)
    return pl.pallas_call(
        functools.partial(compute_hidden_tile, unit),
        out_shape=jax.ShapeDtypeStruct((rows, features), fp8.FORWARD_DTYPE),
        grid=grid,
        in_specs=[
            _block_parts(unit, tile),
            *_block_vectors(unit, tile),
            *fp8_tiles.block_scales(scales),
        ],
        out_specs=pl.BlockSpec(tile, lambda row, column: (row, column)),
        compiler_params=None if interpret else fp8_tiles.make_compiler_params(),
        interpret=interpret,
        name=f"{unit.name}_forward",
    )(product, *vectors, *scales)


def differentiate_unit(
    unit: Unit,
    product: Any,
    gradient_product: Any,
    vectors: Sequence[Any],
    scales: Sequence[Any],
    *,
    interpret: bool = False,
) -> Any:
    """Compute the gradients of the parts, and the hidden features, in FP8.

    Args:
        unit: The unit.
        product: [rows, parts, features], as for `apply_unit`.
        gradient_product: [rows, features], the product of the quantised output gradient with the
            quantised kernel that follows.
        vectors: As for `apply_unit`.
        scales: Those of the input, of the kernels, of the output gradient, of the kernel that
            follows, of the gradients, and of the hidden features, float32 [1] each.
        interpret: Compute the kernel without a GPU.

    Returns:
        The quantised gradients, float8_e5m2 [rows, parts, features]; the same as [parts, features,
        rows]; the quantised hidden features, float8_e4m3fn [features, rows]; and the amaxes of the
        gradients and of the hidden features, float32 [row tiles, feature tiles, parts + 1]. If the
        unit has a bias, also the sum of its gradient in each tile, float32 [row tiles, features].
    """
    rows, parts, features = product.shape
    tile, grid = fp8_tiles.choose_tile(rows, features)
    outputs = [
        jax.ShapeDtypeStruct(product.shape, fp8.BACKWARD_DTYPE),
        jax.ShapeDtypeStruct((parts, features, rows), fp8.BACKWARD_DTYPE),
        jax.ShapeDtypeStruct((features, rows), fp8.FORWARD_DTYPE),
        jax.ShapeDtypeStruct((*grid, parts + 1), jnp.float32),
    ]
    blocks = [
        _block_parts(unit, tile),
        pl.BlockSpec((parts, *tile[::-1]), lambda row, column: (0, column, row)),
        pl.BlockSpec(tile[::-1], lambda row, column: (column, row)),
        pl.BlockSpec((1, 1, parts + 1), lambda row, column: (row, column, 0)),
    ]
    if unit.has_bias:
        outputs.append(jax.ShapeDtypeStruct((grid[0], features), jnp.float32))
        blocks.append(pl.BlockSpec((1, tile[1]), lambda row, column: (row, column)))
    return pl.pallas_call(
        functools.partial(differentiate_tile, unit),
        out_shape=outputs,
        grid=grid,
        in_specs=[
            _block_parts(unit, tile),
            pl.BlockSpec(tile, lambda row, column: (row, column)),
            *_block_vectors(unit, tile),
            *fp8_tiles.block_scales(scales),
        ],
        out_specs=blocks,
        compiler_params=None if interpret else fp8_tiles.make_compiler_params(),
        interpret=interpret,
        name=f"{unit.name}_backward",
    )(product, gradient_product, *vectors, *scales)


def compute_hidden_tile(unit: Unit, product: Any, *arrays: Any) -> None:
    """Compute one tile of `apply_unit`; the arguments are its arrays in their order."""
    *others, result = arrays
    vectors, scales = _read_others(unit, others)
    *part_scales, result_scale = scales
    hidden = unit.compute(*_read_parts(product, part_scales), *vectors)
    result[...] = fp8_tiles.quantise_tile(hidden, result_scale, result.dtype)


def differentiate_tile(unit: Unit, product: Any, gradient_product: Any, *arrays: Any) -> None:
    """Compute one tile of `differentiate_unit`; the arguments are its arrays in their order."""
    results = 4 + unit.has_bias
    vectors, scales = _read_others(unit, arrays[:-results])
    result, transposed, hidden_result, amaxes, *bias_sums = arrays[-results:]
    *part_scales, gradient_scale, kernel_scale = scales[:-2]
    hidden, pull_back = jax.vjp(
        lambda *parts: unit.compute(*parts, *vectors), *_read_parts(product, part_scales)
    )
    hidden_result[...] = fp8_tiles.quantise_tile(hidden, scales[-1], hidden_result.dtype).T
    amaxes[0, 0, unit.parts] = fp8_tiles.compute_tile_amax(hidden)
    gradient = gradient_product[...].astype(jnp.float32) * gradient_scale * kernel_scale
    for part, part_gradient in enumerate(pull_back(gradient)):
        quantised = fp8_tiles.quantise_tile(part_gradient, scales[-2], result.dtype)
        result[:, part, :] = quantised
        transposed[part] = quantised.T
        amaxes[0, 0, part] = fp8_tiles.compute_tile_amax(part_gradient)
        for sums in bias_sums:
            sums[0, :] = jnp.sum(part_gradient, axis=0)


def _read_others(unit: Unit, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the vectors and the scales of a tile in float32, from their arrays in this order."""
    vectors = [array[...].astype(jnp.float32) for array in arrays[: unit.vectors]]
    return vectors, [array[0] for array in arrays[unit.vectors :]]


def _read_parts(product: Any, scales: Sequence[Any]) -> list[Any]:
    """Return the parts of a tile, rescaled, float32 [rows, features] each.

    Args:
        product: The products [rows, parts, features].
        scales: Those of the input and of the kernels.
    """
    input_scale, *kernel_scales = scales
    return [
        product[:, part, :].astype(jnp.float32) * input_scale * kernel_scale
        for part, kernel_scale in enumerate(kernel_scales)
    ]


def _block_parts(unit: Unit, tile: tuple[int, int]) -> Any:
    """Return the blocks of an array [rows, parts, features]."""
    return pl.BlockSpec((tile[0], unit.parts, tile[1]), lambda row, column: (row, 0, column))


def _block_vectors(unit: Unit, tile: tuple[int, int]) -> list[Any]:
    """Return the blocks of the bias and of the weights of the rows, if the unit has them."""
    if not unit.has_bias:
        return []
    return [
        pl.BlockSpec((tile[1],), lambda _row, column: (column,)),
        pl.BlockSpec((tile[0],), lambda row, _column: (row,)),
    ]
