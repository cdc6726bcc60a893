"""A gated MLP in FP8, gelu(gate) x linear, with its elementwise part in one kernel for each pass.

XLA alone computes that part in several kernels, which read the hidden features and write them
several times: for the unit itself, for the cast to FP8, for the amax, and for a transposed copy.
The kernels of `rosetta.nn.geglu_kernels` read the products of the MLP as they are, and write what
the next products need.

The results are those of `rosetta.nn.fp8` with the same scales, but nothing is rounded between the
products and FP8.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rosetta.nn import fp8, geglu_kernels, kernel_placement, sharded_parameters
from rosetta.nn.dense import PROJECTION_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.nn.dense import Projection
    from rosetta.nn.kernel_placement import Placement
    from rosetta.nn.sharded_parameters import Layout

ACTIVATIONS = ("gelu", "linear")


def choose_placement(shape: Sequence[int], names: Sequence[str]) -> tuple[Placement | None, str]:
    """Choose where the kernels run, from the mesh and the hidden features alone.

    Args:
        shape: The shape of the hidden features, [.., .., features].
        names: The logical names of the three dimensions.

    Returns:
        The placement and "", or None and why the kernels cannot run.
    """
    return kernel_placement.choose_placement(
        shape,
        names,
        lambda first, second, features: geglu_kernels.find_shape_problem(first * second, features),
    )


def apply_geglu(x: Any, projections: Sequence[Projection], dtype: Any, placement: Placement) -> Any:
    """Compute the MLP.

    Args:
        x: [.., .., inputs].
        projections: Those of gate, linear and output, all with FP8 state.
        dtype: The type of the activations.
        placement: Where the kernels run.

    Returns:
        [.., .., outputs] in `dtype`.
    """
    layouts = tuple(
        sharded_parameters.find_layout(projection.axes, projection.kernel.shape)
        for projection in projections
    )
    gate, linear, output = (projection.name for projection in projections)
    settings = _Settings(jnp.dtype(dtype), layouts, placement, (f"{gate}+{linear}", output))
    kernels = tuple(projection.kernel for projection in projections)
    states = tuple(dict(projection.state or {}) for projection in projections)
    hidden = _multiply(settings, jnp.asarray(x, dtype), kernels, states)
    return checkpoint_name(hidden, PROJECTION_OUTPUT)


@dataclass(frozen=True)
class _Settings:
    """What does not depend on the arrays.

    Attributes:
        dtype: The type of the activations.
        layouts: The layouts of the three kernels.
        placement: Where the kernels run.
        scopes: The names of the scopes of the first and the second product.
    """

    dtype: Any
    layouts: tuple[Layout | None, ...]
    placement: Placement
    scopes: tuple[str, str]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    settings: _Settings, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> Any:
    """Compute `apply_geglu`, with the derivative of `_compute_backward`."""
    return _compute(settings, x, kernels, states, differentiate=False)[0]


def _compute_forward(
    settings: _Settings, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> tuple[Any, Any]:
    """Return the output of `apply_geglu`, and what the backward pass needs."""
    return _compute(settings, x, kernels, states, differentiate=True)


def _compute(
    settings: _Settings,
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
    *,
    differentiate: bool,
) -> tuple[Any, Any]:
    """Return the output of `apply_geglu`, and what the backward pass needs if there is one.

    The backward pass needs the product of the input with both kernels, not rescaled, and the
    fp8.Residuals of both products. Those of the second have the hidden features transposed.
    """
    dtype = settings.dtype
    with jax.named_scope(settings.scopes[0]):
        product, first = fp8.multiply_input(dtype, settings.layouts[:2], x, kernels[:2], states[:2])
        product = checkpoint_name(product, PROJECTION_OUTPUT)
    hidden_scale, kernel_scale = states[2]["input_scale"], states[2]["kernel_scale"]
    scales = (first.input_scale, *first.kernel_scales, hidden_scale)
    hidden, *others = _run_forward_kernel(
        settings.placement, product, scales, transpose=differentiate
    )
    with jax.named_scope(settings.scopes[1]):
        fp8_kernel = fp8.quantise_kernels(kernels[2:], [kernel_scale], settings.layouts[2:])
        output_product = fp8.multiply_fp8(
            "fprop", dtype, hidden, fp8_kernel, ((hidden.ndim - 1,), (0,))
        )
        output = fp8.rescale_product(output_product, hidden_scale, kernel_scale, dtype)
        if not differentiate:
            return output, None
        transposed, amaxes = others
        second = fp8.Residuals(
            fp8_input=transposed,
            kernels=kernels[2:],
            states=states[2:],
            input_scale=hidden_scale,
            kernel_scales=[kernel_scale],
            amaxes=(
                kernel_placement.join_amaxes(amaxes, dtype)[0],
                fp8.compute_amaxes(kernels[2:]),
            ),
            input_like=first.input_like,
        )
    return output, (product, first, second)


def _compute_backward(settings: _Settings, residuals: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of the input and the kernels, and the observed states."""
    product, first, second = residuals
    with jax.named_scope(settings.scopes[1]):
        hidden_gradient, scales, output_kernel_gradients = _differentiate_output(
            settings, second, gradient
        )
        output_states = fp8.observe_states(second, fp8.compute_amaxes([gradient]))
    result_scale = fp8.find_largest_scale(fp8.list_scales(first.states, "output_grad"))
    parts, transposed_parts, amaxes = _run_backward_kernel(
        settings.placement,
        product,
        hidden_gradient,
        (first.input_scale, *first.kernel_scales, *scales, result_scale),
    )
    with jax.named_scope(settings.scopes[0]):
        input_gradient, kernel_gradients = fp8.differentiate_input(
            settings.dtype,
            settings.layouts[:2],
            first,
            parts,
            transposed_parts,
            ((0, 1), (2, 3)),
        )
        states = fp8.observe_states(first, kernel_placement.join_amaxes(amaxes, settings.dtype))
    return (
        input_gradient,
        (*kernel_gradients, *output_kernel_gradients),
        (*states, *output_states),
    )


def _differentiate_output(
    settings: _Settings, residuals: fp8.Residuals, gradient: Any
) -> tuple[Any, tuple[Any, Any], tuple[Any, ...]]:
    """Differentiate the second product.

    Args:
        settings: What does not depend on the arrays.
        residuals: The residuals of the second product.
        gradient: The gradient of the MLP's output, [.., .., outputs].

    Returns:
        The gradient of the hidden features, not rescaled, the scales of its two factors, and the
        gradient of the kernel.
    """
    layouts = settings.layouts[2:]
    batch_axes = tuple(range(gradient.ndim - 1))
    gradient_scale = residuals.states[0]["output_grad_scale"]
    fp8_gradient = fp8.quantise_tensor(gradient, gradient_scale, fp8.BACKWARD_DTYPE)
    hidden_gradient, kernel_scale = fp8.multiply_gradient(
        settings.dtype, layouts, residuals, fp8_gradient, len(batch_axes)
    )
    last_axes = tuple(range(1, residuals.fp8_input.ndim))
    kernel_gradients = fp8.compute_kernel_gradients(
        settings.dtype, layouts, residuals, fp8_gradient, (last_axes, batch_axes)
    )
    return hidden_gradient, (gradient_scale, kernel_scale), kernel_gradients


_multiply.defvjp(_compute_forward, _compute_backward)


def _run_forward_kernel(
    placement: Placement, product: Any, scales: tuple[Any, ...], *, transpose: bool
) -> tuple[Any, ...]:
    """Run `geglu_kernels.apply_geglu` on each device.

    Args:
        placement: Where the kernel runs.
        product: [.., .., 2, features].
        scales: As for the kernel.
        transpose: As for the kernel.

    Returns:
        The hidden features [.., .., features]. With `transpose` also [features, .., ..], and the
        amaxes of tiles [1, .., ..].
    """

    def run(product: Any, *scales: Any) -> tuple[Any, ...]:
        *batch, parts, features = product.shape
        hidden, *others = geglu_kernels.apply_geglu(
            product.reshape(-1, parts, features),
            scales,
            transpose=transpose,
            interpret=placement.interpret,
        )
        if transpose:
            transposed, amaxes = others
            others = [transposed.reshape(features, *batch), amaxes[None]]
        return hidden.reshape(*batch, features), *others

    first, second, last = placement.axes
    hidden = PartitionSpec(first, second, last)
    transposed = PartitionSpec(last, first, second)
    amaxes = PartitionSpec(None, (*first, *second), last)
    outputs: tuple[Any, ...] = kernel_placement.run_on_mesh(
        placement,
        run,
        (PartitionSpec(first, second, None, last), *[PartitionSpec()] * len(scales)),
        (hidden, transposed, amaxes) if transpose else (hidden,),
    )(product, *scales)
    return outputs


def _run_backward_kernel(
    placement: Placement, product: Any, gradient_product: Any, scales: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Run `geglu_kernels.differentiate_geglu` on each device.

    Args:
        placement: Where the kernel runs.
        product: [.., .., 2, features].
        gradient_product: [.., .., features].
        scales: As for the kernel.

    Returns:
        The gradients [.., .., 2, features] and [2, features, .., ..], and the amaxes of tiles
        [2, .., ..].
    """

    def run(product: Any, gradient_product: Any, *scales: Any) -> tuple[Any, ...]:
        *batch, parts, features = product.shape
        result, transposed, amaxes = geglu_kernels.differentiate_geglu(
            product.reshape(-1, parts, features),
            gradient_product.reshape(-1, features),
            scales,
            interpret=placement.interpret,
        )
        return result.reshape(product.shape), transposed.reshape(parts, features, *batch), amaxes

    first, second, last = placement.axes
    gradients = PartitionSpec(first, second, None, last)
    transposed = PartitionSpec(None, last, first, second)
    amaxes = PartitionSpec(None, (*first, *second), last)
    outputs: tuple[Any, ...] = kernel_placement.run_on_mesh(
        placement,
        run,
        (gradients, PartitionSpec(first, second, last), *[PartitionSpec()] * len(scales)),
        (gradients, transposed, amaxes),
    )(product, gradient_product, *scales)
    return outputs
