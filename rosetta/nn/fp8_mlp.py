"""An MLP in FP8 with its elementwise part, the unit, in one kernel for each pass.

XLA alone computes that part in several kernels, which read the hidden features and write them
several times: for the unit itself, for the cast to FP8, for the amax, and for a transposed copy.
The kernels of `rosetta.nn.mlp_kernels` read the products of the MLP as they are, and write what
the next products need.

The results are those of `rosetta.nn.fp8` with the same scales, but nothing is rounded between the
products and FP8.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rosetta.nn import fp8, kernel_placement, mlp_kernels, sharded_parameters
from rosetta.nn.dense import PROJECTION_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.sharding import Mesh

    from rosetta.nn.dense import Projection
    from rosetta.nn.kernel_placement import Placement
    from rosetta.nn.mlp_kernels import Unit
    from rosetta.nn.sharded_parameters import Layout


def choose_placement(
    unit: Unit, mesh: Mesh | None, shape: Sequence[int], spec: Sequence[Any]
) -> tuple[Placement | None, str]:
    """Choose where the kernels run, from the mesh and the hidden features alone.

    Args:
        unit: The unit.
        mesh: The mesh of the devices; None if it is not known.
        shape: The shape of the hidden features, [.., .., features].
        spec: What splits each of the three dimensions, as the entries of a PartitionSpec.

    Returns:
        The placement and "", or None and why the kernels cannot run.
    """
    return kernel_placement.choose_placement(
        mesh,
        shape,
        spec,
        lambda first, second, features: mlp_kernels.find_shape_problem(
            unit, first * second, features
        ),
    )


def apply_mlp(
    unit: Unit,
    x: Any,
    projections: Sequence[Projection],
    dtype: Any,
    placement: Placement,
    *,
    weights: Any = None,
    product_name: str = PROJECTION_OUTPUT,
) -> Any:
    """Compute the MLP.

    Args:
        unit: What is computed between the products.
        x: [.., .., inputs].
        projections: Those of the unit's parts and of the output, all with FP8 state. The bias of
            the first is the unit's. The others have none.
        dtype: The type of the activations.
        placement: Where the kernels run.
        weights: Factors of the hidden features [.., ..], if the unit has them; None for ones.
        product_name: The checkpoint_name of the products that the unit reads.

    Returns:
        [.., .., outputs] in `dtype`.
    """
    layouts = tuple(
        sharded_parameters.find_layout(projection.axes, projection.kernel.shape)
        for projection in projections
    )
    *first, output = (projection.name for projection in projections)
    scopes = ("+".join(first), output)
    settings = _Settings(unit, jnp.dtype(dtype), layouts, placement, scopes, product_name)
    kernels = tuple(projection.kernel for projection in projections)
    states = tuple(dict(projection.state or {}) for projection in projections)
    vectors: tuple[Any, ...] = ()
    if unit.has_bias:
        bias = projections[0].bias
        if bias is None:
            bias = jnp.zeros(kernels[0].shape[1:], dtype)
        vectors = (bias, jnp.ones(x.shape[:-1], dtype) if weights is None else weights)
    output_features = _multiply(settings, jnp.asarray(x, dtype), kernels, states, vectors)
    return checkpoint_name(output_features, PROJECTION_OUTPUT)


@dataclass(frozen=True)
class _Settings:
    """What does not depend on the arrays.

    Attributes:
        unit: What is computed between the products.
        dtype: The type of the activations.
        layouts: The layouts of the kernels.
        placement: Where the kernels run.
        scopes: The names of the scopes of the first and the second product.
        product_name: The checkpoint_name of the first product.
    """

    unit: Unit
    dtype: Any
    layouts: tuple[Layout | None, ...]
    placement: Placement
    scopes: tuple[str, str]
    product_name: str


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    settings: _Settings,
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
    vectors: tuple[Any, ...],
) -> Any:
    """Compute `apply_mlp`, with the derivative of `_compute_backward`."""
    return _compute_forward(settings, x, kernels, states, vectors)[0]


def _compute_forward(
    settings: _Settings,
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
    vectors: tuple[Any, ...],
) -> tuple[Any, Any]:
    """Return the output of `apply_mlp`, and what the backward pass needs.

    That is the product of the input with the unit's kernels, not rescaled, the vectors, and the
    fp8.Residuals of both products. Those of the second do not have the hidden features yet.
    """
    dtype, layouts, parts = settings.dtype, settings.layouts, settings.unit.parts
    with jax.named_scope(settings.scopes[0]):
        product, first = fp8.multiply_input(
            dtype, layouts[:parts], x, kernels[:parts], states[:parts]
        )
        product = checkpoint_name(product, settings.product_name)
    hidden_scale, kernel_scale = states[parts]["input_scale"], states[parts]["kernel_scale"]
    hidden = _run_forward_kernel(
        settings, product, vectors, (first.input_scale, *first.kernel_scales, hidden_scale)
    )
    with jax.named_scope(settings.scopes[1]):
        fp8_kernel = fp8.quantise_kernels(kernels[parts:], [kernel_scale], layouts[parts:])
        output_product = fp8.multiply_fp8(
            "fprop", dtype, hidden, fp8_kernel, ((hidden.ndim - 1,), (0,))
        )
        output = fp8.rescale_product(output_product, hidden_scale, kernel_scale, dtype)
        second = fp8.Residuals(
            fp8_input=None,
            kernels=kernels[parts:],
            states=states[parts:],
            input_scale=hidden_scale,
            kernel_scales=[kernel_scale],
            amaxes=(None, fp8.compute_amaxes(kernels[parts:])),
            input_like=first.input_like,
        )
    return output, (product, vectors, first, second)


def _compute_backward(
    settings: _Settings, residuals: Any, gradient: Any
) -> tuple[Any, Any, Any, Any]:
    """Return the gradients of the input, the kernels and the vectors, and the observed states."""
    product, vectors, first, second = residuals
    with jax.named_scope(settings.scopes[1]):
        scale = second.states[0]["output_grad_scale"]
        fp8_gradient = fp8.quantise_tensor(gradient, scale, fp8.BACKWARD_DTYPE)
    results = _differentiate_unit(settings, product, vectors, (first, second), fp8_gradient)
    amaxes = kernel_placement.join_amaxes(results.amaxes, settings.dtype)
    second = second._replace(fp8_input=results.hidden, amaxes=(amaxes[-1], second.amaxes[1]))
    with jax.named_scope(settings.scopes[1]):
        output_kernel_gradients = _differentiate_output_kernel(settings, second, fp8_gradient)
        output_states = fp8.observe_states(second, fp8.compute_amaxes([gradient]))
    with jax.named_scope(settings.scopes[0]):
        input_gradient, kernel_gradients = _differentiate_input(settings, first, results)
        states = fp8.observe_states(first, amaxes[:-1])
    return (
        input_gradient,
        (*kernel_gradients, *output_kernel_gradients),
        (*states, *output_states),
        _differentiate_vectors(vectors, results.bias_sums),
    )


class _UnitResults(NamedTuple):
    """What the backward kernel writes, see `_run_backward_kernel`."""

    gradients: Any
    transposed: Any
    hidden: Any
    amaxes: Any
    bias_sums: tuple[Any, ...]


def _differentiate_unit(
    settings: _Settings,
    product: Any,
    vectors: tuple[Any, ...],
    residuals: tuple[fp8.Residuals, fp8.Residuals],
    fp8_gradient: Any,
) -> _UnitResults:
    """Multiply the quantised gradient of the output, and run the backward kernel.

    Args:
        settings: What does not depend on the arrays.
        product: The first product, not rescaled.
        vectors: Those of the unit.
        residuals: Those of the first and the second product.
        fp8_gradient: The gradient of the output, quantised.
    """
    first, second = residuals
    with jax.named_scope(settings.scopes[1]):
        hidden_gradient, kernel_scale = fp8.multiply_gradient(
            settings.dtype,
            settings.layouts[settings.unit.parts :],
            second,
            fp8_gradient,
            fp8_gradient.ndim - 1,
        )
    scales = (
        first.input_scale,
        *first.kernel_scales,
        second.states[0]["output_grad_scale"],
        kernel_scale,
        fp8.find_largest_scale(fp8.list_scales(first.states, "output_grad")),
        second.input_scale,
    )
    gradients, transposed, hidden, amaxes, *bias_sums = _run_backward_kernel(
        settings, product, hidden_gradient, vectors, scales
    )
    return _UnitResults(gradients, transposed, hidden, amaxes, tuple(bias_sums))


def _differentiate_output_kernel(
    settings: _Settings, residuals: fp8.Residuals, fp8_gradient: Any
) -> tuple[Any, ...]:
    """Return the gradient of the kernel of the second product.

    Args:
        settings: What does not depend on the arrays.
        residuals: The residuals of the second product, with the hidden features transposed.
        fp8_gradient: The gradient of the output, quantised.
    """
    batch_axes = tuple(range(fp8_gradient.ndim - 1))
    last_axes = tuple(range(1, fp8_gradient.ndim))
    return fp8.compute_kernel_gradients(
        settings.dtype,
        settings.layouts[settings.unit.parts :],
        residuals,
        fp8_gradient,
        (last_axes, batch_axes),
    )


def _differentiate_input(
    settings: _Settings, residuals: fp8.Residuals, results: _UnitResults
) -> tuple[Any, tuple[Any, ...]]:
    """Return the gradients of the input and of the kernels of the first product."""
    transposed = results.transposed
    batch_dims = residuals.fp8_input.ndim - 1
    last_axes = tuple(range(transposed.ndim - batch_dims, transposed.ndim))
    return fp8.differentiate_input(
        settings.dtype,
        settings.layouts[: settings.unit.parts],
        residuals,
        results.gradients,
        transposed,
        (tuple(range(batch_dims)), last_axes),
    )


_multiply.defvjp(_compute_forward, _compute_backward)


def _differentiate_vectors(vectors: tuple[Any, ...], bias_sums: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the gradients of the vectors; those of the weights of rows are zero.

    Args:
        vectors: The vectors.
        bias_sums: The sums of the bias's gradient on each device, [devices, features].
    """
    if not vectors:
        return ()
    bias, weights = vectors
    # Each device has added in float32. The sum over the devices is in the type of the activations,
    # as the sums of other gradients are.
    sums = bias_sums[0].astype(bias.dtype)
    return lax.reduce(sums, jnp.zeros((), bias.dtype), lax.add, (0,)), jnp.zeros_like(weights)


def _run_forward_kernel(
    settings: _Settings, product: Any, vectors: tuple[Any, ...], scales: tuple[Any, ...]
) -> Any:
    """Run `mlp_kernels.apply_unit` on each device.

    Args:
        settings: What does not depend on the arrays.
        product: [.., .., features], or [.., .., parts, features] of several parts.
        vectors: The bias [features] and the weights of the rows [.., ..], if the unit has them.
        scales: As for the kernel.

    Returns:
        The hidden features [.., .., features].
    """
    unit, placement = settings.unit, settings.placement

    def run(product: Any, *others: Any) -> Any:
        first, second, *_parts, features = product.shape
        hidden = mlp_kernels.apply_unit(
            unit,
            product.reshape(-1, unit.parts, features),
            _flatten_vectors(others[: unit.vectors]),
            others[unit.vectors :],
            interpret=placement.interpret,
        )
        return hidden.reshape(first, second, features)

    inputs = (_split_parts(settings), *_split_others(settings, scales))
    return kernel_placement.run_on_mesh(placement, run, inputs, PartitionSpec(*placement.axes))(
        product, *vectors, *scales
    )


def _run_backward_kernel(
    settings: _Settings,
    product: Any,
    gradient_product: Any,
    vectors: tuple[Any, ...],
    scales: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Run `mlp_kernels.differentiate_unit` on each device.

    Args:
        settings: What does not depend on the arrays.
        product: [.., .., features], or [.., .., parts, features] of several parts.
        gradient_product: [.., .., features].
        vectors: As for `_run_forward_kernel`.
        scales: As for the kernel.

    Returns:
        The gradients in the shape of the product, and [features, .., ..] or [parts, features, ..,
        ..]; the hidden features [features, .., ..]; and the amaxes of tiles [.., .., parts + 1].
        If the unit has a bias, also the sums of its gradient on each device [devices, features],
        float32.
    """
    unit, placement = settings.unit, settings.placement

    def run(product: Any, gradient_product: Any, *others: Any) -> tuple[Any, ...]:
        first, second, *parts, features = product.shape
        result, transposed, hidden, amaxes, *bias_sums = mlp_kernels.differentiate_unit(
            unit,
            product.reshape(-1, unit.parts, features),
            gradient_product.reshape(-1, features),
            _flatten_vectors(others[: unit.vectors]),
            others[unit.vectors :],
            interpret=placement.interpret,
        )
        return (
            result.reshape(product.shape),
            transposed.reshape(*parts, features, first, second),
            hidden.reshape(features, first, second),
            amaxes,
            *(jnp.sum(sums, axis=0, keepdims=True) for sums in bias_sums),
        )

    first, second, last = placement.axes
    rows = (*first, *second)
    transposed = (last, first, second)
    outputs = [
        _split_parts(settings),
        PartitionSpec(*[None] * (unit.parts > 1), *transposed),
        PartitionSpec(*transposed),
        PartitionSpec(rows, last, None),
    ]
    if unit.has_bias:
        outputs.append(PartitionSpec(rows, last))
    inputs = (
        _split_parts(settings),
        PartitionSpec(first, second, last),
        *_split_others(settings, scales),
    )
    results: tuple[Any, ...] = kernel_placement.run_on_mesh(placement, run, inputs, tuple(outputs))(
        product, gradient_product, *vectors, *scales
    )
    return results


def _flatten_vectors(vectors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the bias [features] and the weights of the rows as [rows]."""
    return tuple(vector.reshape(-1) for vector in vectors)


def _split_parts(settings: _Settings) -> PartitionSpec:
    """Return how the products of the unit's parts are split over the devices."""
    first, second, last = settings.placement.axes
    return PartitionSpec(first, second, *[None] * (settings.unit.parts > 1), last)


def _split_others(settings: _Settings, scales: tuple[Any, ...]) -> list[PartitionSpec]:
    """Return how the vectors and the scales are split over the devices."""
    first, second, last = settings.placement.axes
    vectors = [PartitionSpec(last), PartitionSpec(first, second)][: settings.unit.vectors]
    return [*vectors, *[PartitionSpec()] * len(scales)]
