"""Products of activations with a kernel in FP8, for Praxis' layers: their `einsum_tpl`.

rosetta.pax.switches sets Einsum in the layers. rosetta.nn.fp8 or rosetta.nn.transformer_engine
computes the product.

A product in FP8 has state: a scale and a history of the largest magnitudes for each of its
tensors. The state has the names, the shapes and the place of the state of Praxis' own
`Fp8EinsumOp`, so a checkpoint of one restores in the other. A whole kernel has one set of state,
even if it holds q, k and v or one matrix for each expert. All these parts are quantised with the
same scales, and the largest magnitude of all parts enters the history.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from praxis import base_layer

from rosetta.nn import fallback_notice, fp8, transformer_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_NAMES = tuple(
    f"{tensor}_{suffix}" for tensor in fp8.TENSORS for suffix in ("scale", "amax_history")
)
STATE_PATTERN = rf"^.*[/.]({'|'.join(STATE_NAMES)})$"  # the full names of variables with state


class Einsum(base_layer.BaseLayer):
    """An einsum of activations and a kernel, computed in FP8.

    Attributes:
      by: What computes the product: "xla", or "te" for Transformer Engine.
    """

    by: str = "xla"

    def setup(self) -> None:
        """Create the variables of the state."""
        kinds = base_layer.WeightHParamsCollection
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
                    collections=[kinds.OVERWRITE_WITH_GRADIENT, kinds.DISALLOW_BFLOAT16_CONVERSION],
                ),
            )

    def __call__(self, equation: str, x: Any, kernel: Any) -> Any:
        """Return einsum(equation, x, kernel) in fprop_dtype.

        Args:
          equation: An equation that `multiply_in_fp8` takes.
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

    The equation has the form "ebi,ekio->ekbo". Each letter stands for no dimension, one or
    several; e and k stand for one at most. The dimensions of the kernel may be in any order.

      e  experts, each with a kernel of its own
      b  dimensions that only x has; they may be written "..."
      k  parts of the kernel: q, k and v
      i  dimensions that are summed over
      o  outputs

    Differentiated with respect to `state`, the product returns the magnitudes that it saw.

    Args:
      equation: The equation, in the notation of jax.numpy.einsum.
      x: Activations.
      kernel: The kernel.
      state: The scales [1] and the histories [n] of the product, float32 (rosetta.nn.fp8).
      dtype: The type of the result.
      by: "xla" or "te". XLA always computes the products of experts, with a warning for "te".

    Raises:
      ValueError: The equation has another form.
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
                "FP8 of experts by XLA instead of Transformer Engine",
                "its product takes one kernel",
            )
        product = _multiply_experts(x, kernel, dict(state), dtype)
        return product.reshape(*outer_shape, *output_shape)
    multiply = transformer_engine.multiply_kernels if by == "te" else fp8.multiply_kernels
    if axes.parts:
        count = kernel.shape[0]
        states = _repeat_state(dict(state), count)
        part_states = [
            jax.tree.map(lambda leaf, part=part: leaf[part], states) for part in range(count)
        ]
        products = multiply(x, list(kernel), part_states, dtype)
        return jnp.stack(products).reshape(count, *outer_shape, *output_shape)
    return multiply(x, [kernel], [state], dtype)[0].reshape(*outer_shape, *output_shape)


def _multiply_experts(x: Any, kernel: Any, state: dict[str, Any], dtype: Any) -> Any:
    """Return the product of each expert's rows with the expert's kernel.

    Args:
      x: [experts, ..., inputs].
      kernel: [experts, inputs, outputs].
      state: The state that all experts share.
      dtype: The type of the result.
    """

    def multiply_one(x: Any, kernel: Any, state: Any) -> Any:
        # Without a scope here, vmap would change the name of the scope of the product itself.
        with jax.named_scope("expert"):
            return fp8.multiply_kernels(x, [kernel], [state], dtype)[0]

    return jax.vmap(multiply_one)(x, kernel, _repeat_state(state, kernel.shape[0]))


def _read_equation(equation: str, rank: int) -> tuple[_Axes, list[str]]:
    """Return the letters of an equation by their role, and the letters of the kernel.

    Args:
      equation: See `multiply_in_fp8`.
      rank: The number of dimensions of x.

    Raises:
      ValueError: The equation has another form.
    """
    left, right, out = _split_equation(equation, rank)
    rows = [axis for axis in left if axis not in right]
    experts = [axis for axis in left if axis in right and axis in out]
    summed = [axis for axis in left if axis in right and axis not in out]
    kernel_only = [axis for axis in out if axis not in left]
    parts = kernel_only[: out.index(rows[0])] if rows and not experts else []
    outputs = kernel_only[len(parts) :]
    is_product = left == [*experts, *rows, *summed] and out == [*experts, *parts, *rows, *outputs]
    if not is_product or len(experts) > 1 or len(parts) > 1:
        raise ValueError(f"not a product of activations and a kernel: {equation}")
    return _Axes(experts, rows, parts, summed, outputs), right


def _split_equation(equation: str, rank: int) -> tuple[list[str], list[str], list[str]]:
    """Return the letters of x, the kernel and the result, with digits in the place of "..."."""
    left, right, out = equation.replace("->", ",").split(",")
    count = rank - len(left.replace("...", ""))
    digits = "".join(chr(ord("0") + index) for index in range(count))
    return list(left.replace("...", digits)), list(right), list(out.replace("...", digits))


def _arrange_kernel(kernel: Any, kernel_axes: list[str], axes: _Axes) -> Any:
    """Return the kernel as [inputs, outputs], with experts or parts in front if it has them."""
    sizes = dict(zip(kernel_axes, kernel.shape, strict=True))
    outer = [*axes.experts, *axes.parts]
    order = [*outer, *axes.summed, *axes.outputs]
    kernel = jnp.transpose(kernel, [kernel_axes.index(axis) for axis in order])
    return kernel.reshape(
        *(sizes[axis] for axis in outer),
        math.prod(sizes[axis] for axis in axes.summed),
        math.prod(sizes[axis] for axis in axes.outputs),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat_state(state: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a state for each of `count` products that share it, along a new first dimension.

    Backwards, the largest of the magnitudes that the products saw is passed on.
    """
    return {name: jnp.broadcast_to(leaf, (count, *leaf.shape)) for name, leaf in state.items()}


def _repeat_state_forward(state: dict[str, Any], count: int) -> tuple[dict[str, Any], None]:
    """Compute the forward pass of `_repeat_state`, which keeps nothing."""
    return _repeat_state(state, count), None


def _repeat_state_backward(_: int, __: None, seen: dict[str, Any]) -> tuple[dict[str, Any]]:
    """Compute the backward pass of `_repeat_state` from what each product saw."""
    return ({name: jnp.max(leaf, axis=0) for name, leaf in seen.items()},)


_repeat_state.defvjp(_repeat_state_forward, _repeat_state_backward)
