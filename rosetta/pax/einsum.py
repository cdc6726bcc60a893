"""The layer with which Praxis' layers multiply activations and a kernel in FP8.

rosetta.pax.switches sets `Einsum` as the `einsum_tpl` of Praxis' layers. rosetta.nn.fp8 or
rosetta.nn.transformer_engine computes the product.

A product in FP8 has a state: a scale and an amax history for each of its tensors. The variables
have the same names, shapes and paths as those of Praxis' `Fp8EinsumOp`, so each of the two layers
can restore a checkpoint of the other. A kernel has one state, even if it holds q, k and v, or a
matrix for each expert. All of these are quantised with the same scales, and their largest amax
enters the history.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from praxis import base_layer
from praxis.layers import base_ops

from rosetta.nn import fallback_notice, fp8, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_NAMES = tuple(
    f"{tensor}_{suffix}" for tensor in fp8.TENSORS for suffix in ("scale", "amax_history")
)
# Matches the full name of a variable, such as a/b/NAME or a.b.NAME, that holds FP8 state.
STATE_PATTERN = rf"^.*[/.]({'|'.join(STATE_NAMES)})$"


class Einsum(base_layer.BaseLayer):
    """An einsum of activations and a kernel, computed in FP8.

    Attributes:
      by: What computes the product: "xla", or "te" for Transformer Engine.
    """

    by: str = "xla"

    def setup(self) -> None:
        """Create the variables of the FP8 state."""
        collections = base_layer.WeightHParamsCollection
        for name in STATE_NAMES:
            is_history = name.endswith("amax_history")
            self.create_variable(
                name,
                base_layer.WeightHParams(
                    shape=[fp8.HISTORY_LENGTH if is_history else 1],
                    init=base_layer.WeightInit.Constant(0.0 if is_history else 1.0),
                    dtype=jnp.float32,
                    mesh_shape=self.mesh_shape,
                    tensor_split_dims_mapping=None,
                    collections=[
                        collections.OVERWRITE_WITH_GRADIENT,
                        collections.DISALLOW_BFLOAT16_CONVERSION,
                    ],
                ),
            )

    def __call__(self, equation: str, x: Any, kernel: Any) -> Any:
        """Return einsum(equation, x, kernel) in the layer's `fprop_dtype`.

        Args:
          equation: An equation of the form that `multiply_in_fp8` describes.
          x: Activations.
          kernel: The kernel.
        """
        return multiply_in_fp8(
            equation,
            x,
            kernel,
            {name: self.theta[name] for name in STATE_NAMES},
            self.fprop_dtype,
            self.by,
        )


class RowMajorEinsum(base_ops.EinsumOp):
    """An einsum of activations and a kernel of several parts, such as q, k and v, as one product.

    Praxis' product has the parts first: XLA transposes what a GEMM writes, [rows, parts, outputs],
    and transposes what repeated layers keep of it once more. Here a GEMM writes what is kept, and
    the operations that read a part find it there.
    """

    def __call__(self, equation: str, *args: Any) -> Any:
        """Return einsum(equation, activations, kernel)."""
        x, kernel = args
        operands, result = equation.split("->")
        x_axes, kernel_axes = operands.split(",")
        part = result[0]
        if part in x_axes or part not in kernel_axes or "." in equation:
            return super().__call__(equation, x, kernel)
        row_count = sum(axis in x_axes for axis in result)
        row_major = result[1 : row_count + 1] + part + result[row_count + 1 :]
        product = super().__call__(f"{operands}->{row_major}", x, kernel)
        # XLA would take a transpose out of a backward loop, and transpose what all layers keep.
        parts = [
            lax.index_in_dim(product, index, row_count, keepdims=False)
            for index in range(product.shape[row_count])
        ]
        return jnp.stack(parts)


class _Axes(NamedTuple):
    """The letters of an equation by their role; see `multiply_in_fp8`."""

    experts: list[str]
    rows: list[str]
    parts: list[str]
    summed: list[str]
    outputs: list[str]


def multiply_in_fp8(
    equation: str, x: Any, kernel: Any, state: Mapping[str, Any], dtype: Any, by: str = "xla"
) -> Any:
    """Return einsum(equation, x, kernel) in `dtype`, computed in FP8.

    The equation has the form "ebi,ekio->ekbo", where each letter is a role:

      e  experts, each with a matrix of its own in the kernel: at most one dimension
      b  rows: dimensions that the kernel does not have; the equation may write them as "..."
      k  parts of the kernel, such as q, k and v: at most one dimension
      i  inputs: dimensions that are summed over
      o  outputs

    A role may have no dimension or, except for e and k, several. The dimensions of the kernel may
    be in any order. For example, "...d,kdnh->k...nh" has the rows "...", the parts k, the input d
    and the outputs n and h.

    The derivative with respect to `state` is the observed state: the scales that were used, and the
    amaxes of this step (see rosetta.nn.fp8).

    Args:
      equation: The equation, in the notation of jax.numpy.einsum.
      x: Activations.
      kernel: The kernel.
      state: The scales [1] and the amax histories [n] of the product, in float32.
      dtype: The type of the result.
      by: "xla" or "te". XLA always computes the products of experts, with a warning for "te".

    Raises:
      ValueError: The equation does not have this form.
    """
    axes, kernel_axes = _read_equation(equation, x.ndim)
    sizes = dict(zip(kernel_axes, kernel.shape, strict=True))
    kernel = _arrange_kernel(kernel, kernel_axes, axes)
    outer_shape = x.shape[: len(axes.experts) + len(axes.rows)]
    output_shape = [sizes[axis] for axis in axes.outputs]
    summed_size = math.prod(sizes[axis] for axis in axes.summed)
    x = jnp.asarray(x, dtype).reshape(*outer_shape, summed_size)
    if axes.experts:
        if by == "te":
            fallback_notice.warn_once(
                f"FP8 of experts by XLA {fallback_notice.INSTEAD_OF_TE}",
                "its product cannot take a kernel for each expert",
            )
        product = _multiply_experts(x, kernel, dict(state), dtype)
        return product.reshape(*outer_shape, *output_shape)
    multiply = transformer_engine.multiply_kernels if by == "te" else fp8.multiply_kernels
    if axes.parts:
        part_count = kernel.shape[0]
        states = _repeat_state(dict(state), part_count)
        part_states = [_select_part(states, part) for part in range(part_count)]
        products = multiply(x, list(kernel), part_states, dtype)
        return jnp.stack(products).reshape(part_count, *outer_shape, *output_shape)
    return multiply(x, [kernel], [state], dtype)[0].reshape(*outer_shape, *output_shape)


def _multiply_experts(x: Any, kernel: Any, state: dict[str, Any], dtype: Any) -> Any:
    """Return the product of each expert's rows with the expert's kernel.

    Args:
      x: [experts, ..., inputs].
      kernel: [experts, inputs, outputs].
      state: The state that all experts share.
      dtype: The type of the result.
    """

    def multiply_expert(x: Any, kernel: Any, state: Any) -> Any:
        # vmap renames the outermost scope in this function. This scope is there to be renamed, so
        # that the scopes of the product keep their names.
        with jax.named_scope("expert"):
            return fp8.multiply_kernels(x, [kernel], [state], dtype)[0]

    return jax.vmap(multiply_expert)(x, kernel, _repeat_state(state, kernel.shape[0]))


def _read_equation(equation: str, rank: int) -> tuple[_Axes, list[str]]:
    """Return the letters of an equation by their role, and the letters of the kernel.

    Args:
      equation: See `multiply_in_fp8`.
      rank: The number of dimensions of x.

    Raises:
      ValueError: The equation does not have the form that `multiply_in_fp8` describes.
    """
    x_axes, kernel_axes, result_axes = _split_equation(equation, rank)
    rows = [axis for axis in x_axes if axis not in kernel_axes]
    shared = [axis for axis in x_axes if axis in kernel_axes]
    experts = [axis for axis in shared if axis in result_axes]
    summed = [axis for axis in shared if axis not in result_axes]
    kernel_only = [axis for axis in result_axes if axis not in x_axes]
    # Of the dimensions that only the kernel has, those before the rows are parts.
    parts = kernel_only[: result_axes.index(rows[0])] if rows and not experts else []
    outputs = kernel_only[len(parts) :]
    has_form = (
        x_axes == [*experts, *rows, *summed]
        and result_axes == [*experts, *parts, *rows, *outputs]
        and len(experts) <= 1
        and len(parts) <= 1
    )
    if not has_form:
        raise ValueError(f"not a product of activations and a kernel: {equation}")
    return _Axes(experts, rows, parts, summed, outputs), kernel_axes


def _split_equation(equation: str, rank: int) -> tuple[list[str], list[str], list[str]]:
    """Return the letters of x, of the kernel and of the result.

    Each dimension that "..." stands for has a digit as its letter.
    """
    x_letters, kernel_letters, result_letters = equation.replace("->", ",").split(",")
    ellipsis_rank = rank - len(x_letters.replace("...", ""))
    digits = "".join(chr(ord("0") + index) for index in range(ellipsis_rank))
    x_letters = x_letters.replace("...", digits)
    result_letters = result_letters.replace("...", digits)
    return list(x_letters), list(kernel_letters), list(result_letters)


def _arrange_kernel(kernel: Any, kernel_axes: list[str], axes: _Axes) -> Any:
    """Return the kernel as [inputs, outputs], after a dimension of experts or parts, if any."""
    sizes = dict(zip(kernel_axes, kernel.shape, strict=True))
    leading_axes = [*axes.experts, *axes.parts]
    order = [*leading_axes, *axes.summed, *axes.outputs]
    kernel = jnp.transpose(kernel, [kernel_axes.index(axis) for axis in order])
    return kernel.reshape(
        *(sizes[axis] for axis in leading_axes),
        math.prod(sizes[axis] for axis in axes.summed),
        math.prod(sizes[axis] for axis in axes.outputs),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat_state(state: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a state for each of `count` products that share it, along a new first dimension.

    The backward pass combines the observed states of the products: it returns their maximum.
    """
    return {name: jnp.broadcast_to(leaf, (count, *leaf.shape)) for name, leaf in state.items()}


def _select_part(states: dict[str, Any], part: int) -> dict[str, Any]:
    """Return the state of one part from what `_repeat_state` returned."""
    part_state: dict[str, Any] = jax.tree.map(lambda leaf: leaf[part], states)
    return part_state


def _repeat_state_forward(state: dict[str, Any], count: int) -> tuple[dict[str, Any], None]:
    """Compute the forward pass of `_repeat_state`. The backward pass needs no residuals."""
    return _repeat_state(state, count), None


def _repeat_state_backward(
    _count: int, _residuals: None, observed: dict[str, Any]
) -> tuple[dict[str, Any]]:
    """Compute the backward pass of `_repeat_state` from the observed state of each product."""
    return ({name: jnp.max(leaf, axis=0) for name, leaf in observed.items()},)


_repeat_state.defvjp(_repeat_state_forward, _repeat_state_backward)
