"""Joined projections in FP8 whose backward pass reads the gradient of each output once.

XLA alone reads these gradients several times: for the amax of each, for the cast to FP8, and for a
transposed copy of the result. The kernel of `rosetta.nn.gradient_kernels` does all of it. The
results are those of `rosetta.nn.fp8` with the same scales.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rosetta.nn import current_mesh, fp8, gradient_kernels, kernel_placement, sharded_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.nn.kernel_placement import Placement
    from rosetta.nn.sharded_parameters import Layout


@dataclass(frozen=True)
class Gradients:
    """How the kernel reads the gradients of the outputs.

    Attributes:
        placement: Where the kernel runs; its axes are those of [batch, length, outputs].
        length_first: Whether activations have the length before the batch.
    """

    placement: Placement
    length_first: bool


def plan_gradients(
    shape: Sequence[int], names: Sequence[str], parts: int, *, length_first: bool
) -> tuple[Gradients | None, str]:
    """Choose how the kernel reads gradients, from the mesh and the outputs alone.

    Args:
        shape: The shape of each output: [batch, length, outputs] or [length, batch, outputs].
        names: The logical names of the three dimensions.
        parts: The number of outputs.
        length_first: Whether the length is before the batch.

    Returns:
        The gradients and "", or None and why the kernel cannot read them.
    """
    order = (1, 0, 2) if length_first else (0, 1, 2)
    placement, problem = kernel_placement.choose_placement(
        current_mesh.find_mesh(),
        [shape[axis] for axis in order],
        kernel_placement.find_logical_axes([names[axis] for axis in order]),
        functools.partial(gradient_kernels.find_shape_problem, parts=parts),
    )
    return (Gradients(placement, length_first) if placement else None), problem


def multiply_kernels(
    x: Any,
    kernels: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    dtype: Any,
    axes: Sequence[Sequence[str]],
    *,
    gradients: Gradients,
) -> tuple[Any, ...]:
    """Multiply as `fp8.multiply_kernels`, with another backward pass.

    Args:
        x: [batch, length, inputs] or [length, batch, inputs].
        kernels: [inputs, outputs] each, of the same size.
        states: The FP8 state of each kernel's projection.
        dtype: The type of the outputs.
        axes: The logical names of the dimensions of each kernel.
        gradients: How the kernel reads the gradients of the outputs.
    """
    layouts = tuple(
        sharded_parameters.find_layout(names, kernel.shape)
        for names, kernel in zip(axes, kernels, strict=True)
    )
    settings = _Settings(jnp.dtype(dtype), layouts, gradients)
    outputs: tuple[Any, ...] = _multiply(
        settings, x, tuple(kernels), tuple(dict(state) for state in states)
    )
    return outputs


@dataclass(frozen=True)
class _Settings:
    """What does not depend on the arrays.

    Attributes:
        dtype: The type of the outputs.
        layouts: The layouts of the kernels.
        gradients: How the kernel reads the gradients of the outputs.
    """

    dtype: Any
    layouts: tuple[Layout | None, ...]
    gradients: Gradients


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    settings: _Settings, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> Any:
    """Compute `multiply_kernels`, with the derivative of `_compute_backward`."""
    return _compute_forward(settings, x, kernels, states)[0]


def _compute_forward(
    settings: _Settings, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> tuple[Any, Any]:
    """Return the outputs, and what the backward pass needs."""
    return fp8.compute_forward(settings.dtype, settings.layouts, x, kernels, states)


def _compute_backward(
    settings: _Settings, residuals: fp8.Residuals, output_gradients: tuple[Any, ...]
) -> tuple[Any, Any, Any]:
    """Return the gradients of the input and the kernels, and the observed states."""
    scale = fp8.find_largest_scale(fp8.list_scales(residuals.states, "output_grad"))
    joined, transposed, amaxes = _run_kernel(settings.gradients, output_gradients, scale)
    input_axes = (1, 0) if settings.gradients.length_first else (0, 1)
    input_gradient, kernel_gradients = fp8.differentiate_input(
        settings.dtype, settings.layouts, residuals, joined, transposed, (input_axes, (2, 3))
    )
    observed = fp8.observe_states(residuals, kernel_placement.join_amaxes(amaxes, settings.dtype))
    return input_gradient, kernel_gradients, observed


_multiply.defvjp(_compute_forward, _compute_backward)


def _run_kernel(
    settings: Gradients, gradients: tuple[Any, ...], scale: Any
) -> tuple[Any, Any, Any]:
    """Run `gradient_kernels.join_gradients` on each device.

    Args:
        settings: How the kernel reads the gradients.
        gradients: Those of the outputs, in the layout of the activations.
        scale: As for the kernel.

    Returns:
        The joined gradients [.., .., parts, outputs] in the layout of the activations, the same as
        [parts, outputs, batch, length], and the amaxes of tiles [.., .., parts].
    """
    if settings.length_first:
        gradients = tuple(jnp.swapaxes(gradient, 0, 1) for gradient in gradients)

    def run(scale: Any, *gradients: Any) -> Any:
        return tuple(
            gradient_kernels.join_gradients(
                gradients,
                scale,
                length_first=settings.length_first,
                interpret=settings.placement.interpret,
            )
        )

    batch, length, last = settings.placement.axes
    order = (length, batch) if settings.length_first else (batch, length)
    outputs: tuple[Any, Any, Any] = kernel_placement.run_on_mesh(
        settings.placement,
        run,
        (PartitionSpec(), *[PartitionSpec(batch, length, last)] * len(gradients)),
        (
            PartitionSpec(*order, None, last),
            PartitionSpec(None, last, batch, length),
            PartitionSpec((*batch, *length), last, None),
        ),
    )(scale, *gradients)
    return outputs
