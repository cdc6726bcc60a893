"""Projections in FP8 with delayed scaling, for T5X's networks and for Pax's einsum.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv:2209.05433. The forward
pass uses e4m3, and the gradients of outputs use e5m2.

A tensor is divided by its scale before it is rounded to FP8. The scale follows from a history of
amaxes: the largest absolute values (amax) of the tensor in the last steps. The scales and the
histories are the FP8 state of a projection. They are in Flax's collection
`_overwrite_with_gradient`, in arrays with the names of flax.linen.fp8_ops. A history is a ring: the
amax of step s is at index s modulo the length.

Backpropagation does not return a gradient for the state. In place of it, it returns the observed
state: the scales that were used, and the amaxes of this step. `combine_microbatches` merges what
several microbatches observed. `advance_states` makes the state of the next step from it, for all
projections at once: one at a time, thousands of kernels a step would do the work of a hundred.

Several projections in one product (parts) have a scale each, for their kernel and their output
gradient. The forward product scales the output of each part. The gradient of the input is a sum
over the parts, so both of its factors use the largest scale of the parts.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import unfreeze
from flax.linen.partitioning import AxisMetadata
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from rosetta.core import gpus
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.gpu_query import parse_capability
from rosetta.nn import fused_kernels, sharded_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flax import linen as nn

    from rosetta.nn.sharded_parameters import Layout

COLLECTION = "_overwrite_with_gradient"
FORWARD_DTYPE, BACKWARD_DTYPE = jnp.float8_e4m3fn, jnp.float8_e5m2
HISTORY_LENGTH = 1024  # steps, the default of Flax and Transformer Engine
TENSORS = ("input", "kernel", "output_grad")
_HISTORY_SUFFIX = "_amax_history"
_HISTORIES_PER_KERNEL = 32  # histories that one GPU kernel reads


def get_state(module: nn.Module) -> dict[str, Any]:
    """Return the FP8 state of a projection, and create it if the module is being initialized.

    Parameters without FP8 state, for example of a checkpoint in bfloat16, get scales of one and
    empty histories.

    Args:
        module: The Flax module that has the projection's kernel.

    Returns:
        For each name in TENSORS float32 arrays: NAME_scale [1] and NAME_amax_history
        [HISTORY_LENGTH].
    """
    state = {}
    for tensor in TENSORS:
        shapes = {f"{tensor}_scale": (1,), f"{tensor}{_HISTORY_SUFFIX}": (HISTORY_LENGTH,)}
        for name, shape in shapes.items():
            make = _choose_initializer(name)
            if module.has_variable(COLLECTION, name) or module.is_initializing():
                variable = module.variable(COLLECTION, name, make, shape, jnp.float32)
                state[name] = variable.value
            else:
                state[name] = make(shape, jnp.float32)
    return state


def _choose_initializer(name: str) -> Any:
    """Return the initializer of a state array: ones for a scale, zeros for a history."""
    return jnp.zeros if name.endswith(_HISTORY_SUFFIX) else jnp.ones


def make_initial_states(states: Any) -> Any:
    """Return the initial states for a tree of states: scales of one and empty histories."""
    arrays = flatten_dict(unfreeze(states))
    return unflatten_dict(
        {
            path: _choose_initializer(path[-1])(array.shape, array.dtype)
            for path, array in arrays.items()
        }
    )


def make_axes_metadata(states: Any) -> Any:
    """Return Flax's axis metadata for a tree of states.

    It has the form of the collection `params_axes` for parameters. No dimension is ever sharded.
    """
    arrays = flatten_dict(unfreeze(states))
    return unflatten_dict(
        {
            (*path[:-1], f"{path[-1]}_axes"): AxisMetadata(names=(None,) * array.ndim)
            for path, array in arrays.items()
        }
    )


def require_fp8(devices: Sequence[Any]) -> None:
    """Check that the GPUs among the devices have FP8. A CPU passes: it computes FP8 slowly.

    Raises:
        UserError: A GPU does not have FP8.
    """
    for device in devices:
        capability = getattr(device, "compute_capability", None)
        if device.platform != "gpu" or not capability:
            continue
        if not gpus.FP8.supported_by(parse_capability(capability)):
            raise UserError(
                f"{device.device_kind} (compute capability {capability}) has no FP8",
                "ENABLE_FP8",
                f"switch FP8 off; {gpus.FP8.requirement}",
                kind=UNSUPPORTED,
            )


def compute_scale(amax: Any, previous: Any, dtype: Any) -> Any:
    """Return the scale with which a tensor of this amax fills the range of an FP8 type.

    The previous scale stays if the amax is not finite. It also stays if the amax is so small that
    the scale would not be a normal float32: devices flush such numbers to zero.

    Args:
        amax: The largest absolute value of the tensor, float32 of any shape.
        previous: The scale before, in the shape of `amax`.
        dtype: The FP8 type.
    """
    largest = float(jnp.finfo(dtype).max)
    is_usable = (amax >= float(jnp.finfo(jnp.float32).tiny) * largest) & jnp.isfinite(amax)
    return jnp.where(is_usable, amax / largest, previous)


def quantise_tensor(x: Any, scale: Any, dtype: Any) -> Any:
    """Return x / scale in an FP8 type; values out of its range become its largest value."""
    largest = float(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32) / scale, -largest, largest).astype(dtype)


def compute_amaxes(arrays: Sequence[Any]) -> list[Any]:
    """Return the largest absolute value of each array, float32 [1].

    Args:
        arrays: [..., outputs] each. If all have the same shape, one reduction computes all amaxes.
    """
    joined = fused_kernels.join_parts(arrays)
    if len(arrays) == 1 or joined.ndim == arrays[0].ndim:
        return [jnp.max(jnp.abs(array)).astype(jnp.float32).reshape(1) for array in arrays]
    axes = (*range(joined.ndim - 2), joined.ndim - 1)
    amaxes = jnp.max(jnp.abs(joined), axis=axes).astype(jnp.float32)
    return [amaxes[index : index + 1] for index in range(len(arrays))]


def multiply_kernels(
    x: Any,
    kernels: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    dtype: Any,
    axes: Sequence[Sequence[str]] = (),
) -> tuple[Any, ...]:
    """Multiply an input with one kernel or several in FP8.

    The derivative with respect to `states` is the observed state: the scales that were used, and
    the amax of this step in each element of a history.

    Args:
        x: [..., inputs].
        kernels: [inputs, outputs] each.
        states: The FP8 state of each kernel's projection.
        dtype: The type of the outputs.
        axes: The logical names of the dimensions of each kernel. Kernels that are sharded over the
            data axes are gathered in FP8. Empty if none is.

    Returns:
        For each kernel [..., outputs] in `dtype`.
    """
    layouts = tuple(
        sharded_parameters.find_layout(names, kernel.shape)
        for names, kernel in zip(axes or [()] * len(kernels), kernels, strict=True)
    )
    outputs: tuple[Any, ...] = _multiply_kernels(
        jnp.dtype(dtype), layouts, x, tuple(kernels), tuple(dict(state) for state in states)
    )
    return outputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply_kernels(
    dtype: Any,
    layouts: tuple[Layout | None, ...],
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
) -> tuple[Any, ...]:
    """Multiply as `multiply_kernels`, with the derivative of `_compute_backward`."""
    outputs: tuple[Any, ...] = compute_forward(dtype, layouts, x, kernels, states)[0]
    return outputs


class Residuals(NamedTuple):
    """What the forward pass keeps for the backward pass.

    Attributes:
        fp8_input: The quantised input [..., inputs]; `fp8_mlp` has [inputs, ...].
        kernels: [inputs, outputs] each, in the type of the parameters.
        states: The FP8 states.
        input_scale: [1], the scale of `fp8_input`.
        kernel_scales: [1] for each kernel.
        amaxes: The amax of the input, and the list of the kernels' amaxes.
        input_like: [0] in the type of the input.
    """

    fp8_input: Any
    kernels: tuple[Any, ...]
    states: tuple[dict[str, Any], ...]
    input_scale: Any
    kernel_scales: list[Any]
    amaxes: tuple[Any, list[Any]]
    input_like: Any


def list_scales(states: tuple[dict[str, Any], ...], tensor: str) -> list[Any]:
    """Return the scale [1] of one of TENSORS in each state."""
    return [state[f"{tensor}_scale"] for state in states]


def find_largest_scale(scales: list[Any]) -> Any:
    """Return the largest of several scales, [1]."""
    return functools.reduce(jnp.maximum, scales)


def multiply_fp8(
    scope: str,
    dtype: Any,
    left: Any,
    right: Any,
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
) -> Any:
    """Multiply two FP8 arrays over the `contracted` dimensions of each."""
    with jax.named_scope(scope):
        # float16 ends at 65,504. Products of factors up to 448 exceed it before they are rescaled.
        output_dtype = jnp.bfloat16 if dtype == jnp.float16 else dtype
        return lax.dot_general(
            left, right, (contracted, ((), ())), preferred_element_type=output_dtype
        )


def rescale_product(product: Any, left_scale: Any, right_scale: Any, dtype: Any) -> Any:
    """Return the product of the tensors from the product of their quantised values.

    The scales are applied in float32, not rounded to `dtype`.
    """
    return (product.astype(jnp.float32) * left_scale * right_scale).astype(dtype)


def quantise_kernels(
    kernels: Sequence[Any], scales: Sequence[Any], layouts: Sequence[Layout | None]
) -> Any:
    """Return the kernels in FP8, gathered and joined."""
    return fused_kernels.join_parts(
        [
            sharded_parameters.gather_array(quantise_tensor(kernel, scale, FORWARD_DTYPE), layout)
            for kernel, scale, layout in zip(kernels, scales, layouts, strict=True)
        ]
    )


def compute_forward(
    dtype: Any,
    layouts: tuple[Layout | None, ...],
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
) -> tuple[Any, Any]:
    """Return the outputs of `multiply_kernels` and the Residuals.

    Args:
        dtype: The type of the outputs.
        layouts: The layouts of the kernels.
        x: The input, [..., inputs].
        kernels: [inputs, outputs] each.
        states: The FP8 state of each kernel's projection.
    """
    product, residuals = multiply_input(dtype, layouts, x, kernels, states)
    parts = fused_kernels.split_parts(product, [kernel.shape[1] for kernel in kernels])
    outputs = [
        rescale_product(part, residuals.input_scale, scale, dtype)
        for part, scale in zip(parts, residuals.kernel_scales, strict=True)
    ]
    return tuple(outputs), residuals


def multiply_input(
    dtype: Any,
    layouts: Sequence[Layout | None],
    x: Any,
    kernels: tuple[Any, ...],
    states: tuple[dict[str, Any], ...],
) -> tuple[Any, Residuals]:
    """Quantise an input and kernels, and multiply them.

    Args:
        dtype: The type of the product.
        layouts: The layouts of the kernels.
        x: The input, [..., inputs].
        kernels: [inputs, outputs] each.
        states: The FP8 state of each kernel's projection.

    Returns:
        The product with the joined kernels, not rescaled, and what the backward pass needs.
    """
    input_scale = find_largest_scale(list_scales(states, "input"))
    kernel_scales = list_scales(states, "kernel")
    fp8_input = quantise_tensor(x, input_scale, FORWARD_DTYPE)
    fp8_kernels = quantise_kernels(kernels, kernel_scales, layouts)
    product = multiply_fp8("fprop", dtype, fp8_input, fp8_kernels, ((x.ndim - 1,), (0,)))
    amaxes = (compute_amaxes([x])[0], compute_amaxes(kernels))
    input_like = jnp.zeros((0,), x.dtype)
    return product, Residuals(
        fp8_input, kernels, states, input_scale, kernel_scales, amaxes, input_like
    )


def _compute_backward(
    dtype: Any,
    layouts: tuple[Layout | None, ...],
    residuals: Residuals,
    gradients: tuple[Any, ...],
) -> tuple[Any, Any, Any]:
    """Return the gradients of the input and the kernels, and the observed states."""
    gradient_scale = find_largest_scale(list_scales(residuals.states, "output_grad"))
    fp8_gradient = quantise_tensor(
        fused_kernels.join_parts(gradients), gradient_scale, BACKWARD_DTYPE
    )
    batch_axes = tuple(range(residuals.fp8_input.ndim - 1))
    input_gradient, kernel_gradients = differentiate_input(
        dtype, layouts, residuals, fp8_gradient, fp8_gradient, (batch_axes, batch_axes)
    )
    # One reduction for each gradient, unlike the kernels': XLA can then fuse it into the operation
    # that makes the gradient. Kernels are not made by an operation.
    gradient_amaxes = [compute_amaxes([gradient])[0] for gradient in gradients]
    observed = observe_states(residuals, gradient_amaxes)
    return input_gradient, kernel_gradients, observed


def differentiate_input(
    dtype: Any,
    layouts: Sequence[Layout | None],
    residuals: Residuals,
    fp8_gradient: Any,
    transposed_gradient: Any,
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Any, tuple[Any, ...]]:
    """Return the gradients of the input and of each kernel.

    Args:
        dtype: The type of the products.
        layouts: The layouts of the kernels.
        residuals: What the forward pass kept; the input with the features last.
        fp8_gradient: The joined gradients of the outputs, quantised, with the outputs last.
        transposed_gradient: The same with its dimensions in any order.
        contracted: The batch dimensions of the input and those of `transposed_gradient`.
    """
    product, kernel_scale = multiply_gradient(
        dtype, layouts, residuals, fp8_gradient, residuals.fp8_input.ndim - 1
    )
    gradient_scale = find_largest_scale(list_scales(residuals.states, "output_grad"))
    input_gradient = rescale_product(product, gradient_scale, kernel_scale, dtype)
    kernel_gradients = compute_kernel_gradients(
        dtype, layouts, residuals, transposed_gradient, contracted
    )
    return input_gradient.astype(residuals.input_like.dtype), kernel_gradients


def multiply_gradient(
    dtype: Any,
    layouts: Sequence[Layout | None],
    residuals: Residuals,
    fp8_gradient: Any,
    batch_dims: int,
) -> tuple[Any, Any]:
    """Multiply the quantised gradient of the outputs with the kernels.

    Args:
        dtype: The type of the product.
        layouts: The layouts of the kernels.
        residuals: What the forward pass kept.
        fp8_gradient: The joined gradients of the outputs, [..., parts, outputs] or [..., outputs].
        batch_dims: The number of dimensions before those of the outputs.

    Returns:
        The product [..., inputs], not rescaled, and the scale of the kernels, [1].
    """
    kernel_scale = find_largest_scale(residuals.kernel_scales)
    kernels = residuals.kernels
    fp8_kernel = quantise_kernels(kernels, [kernel_scale] * len(kernels), layouts)
    output_axes = tuple(range(batch_dims, fp8_gradient.ndim))
    contracted = (output_axes, tuple(range(1, fp8_kernel.ndim)))
    return multiply_fp8("dgrad", dtype, fp8_gradient, fp8_kernel, contracted), kernel_scale


def compute_kernel_gradients(
    dtype: Any,
    layouts: Sequence[Layout | None],
    residuals: Residuals,
    fp8_gradient: Any,
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Any, ...]:
    """Return the gradient of each kernel, [inputs, outputs] in its type.

    Args:
        dtype: The type of the product.
        layouts: The layouts of the kernels.
        residuals: What the forward pass kept.
        fp8_gradient: The joined gradients of the outputs, quantised.
        contracted: The batch dimensions of the input that the residuals have, and those of the
            gradient.
    """
    kernels = residuals.kernels
    joined = rescale_product(
        multiply_fp8("wgrad", dtype, residuals.fp8_input, fp8_gradient, contracted),
        residuals.input_scale,
        find_largest_scale(list_scales(residuals.states, "output_grad")),
        kernels[0].dtype,
    )
    parts = fused_kernels.split_parts(joined, [kernel.shape[1] for kernel in kernels])
    return tuple(
        sharded_parameters.scatter_gradient(part, layout)
        for part, layout in zip(parts, layouts, strict=True)
    )


def observe_states(
    residuals: Residuals, gradient_amaxes: Sequence[Any]
) -> tuple[dict[str, Any], ...]:
    """Return the observed state of each part: its scales, and this step's amaxes as histories.

    Args:
        residuals: What the forward pass kept.
        gradient_amaxes: The amax of the gradient of each part's output, [1].
    """
    input_amax, kernel_amaxes = residuals.amaxes
    observed = []
    for state, kernel_amax, gradient_amax in zip(
        residuals.states, kernel_amaxes, gradient_amaxes, strict=True
    ):
        amaxes = {"input": input_amax, "kernel": kernel_amax, "output_grad": gradient_amax}
        scales = {f"{tensor}_scale": state[f"{tensor}_scale"] for tensor in TENSORS}
        histories = {
            f"{tensor}{_HISTORY_SUFFIX}": jnp.broadcast_to(
                amax, state[f"{tensor}{_HISTORY_SUFFIX}"].shape
            )
            for tensor, amax in amaxes.items()
        }
        observed.append(scales | histories)
    return tuple(observed)


_multiply_kernels.defvjp(compute_forward, _compute_backward)


def combine_microbatches(observed: Any, others: Any) -> Any:
    """Return the observed state of two microbatches that started from the same state.

    Their scales are the same, and of two amaxes the larger one counts.
    """
    return jax.tree.map(jnp.maximum, observed, others)


def advance_states(states: Any, observed: Any, step: Any) -> Any:
    """Return the FP8 states after a step.

    Args:
        states: A tree of the states before the step. States of layers in a loop may be stacked,
            [layers, ...].
        observed: The tree that backpropagation returned for it.
        step: The number of the step, int32 [].
    """
    before, after = flatten_dict(unfreeze(states)), flatten_dict(unfreeze(observed))
    paths = [path for path in before if path[-1].endswith(_HISTORY_SUFFIX)]
    # An infinite amax would hide all others of the history until it leaves the ring.
    amaxes = [jnp.where(jnp.isfinite(after[path]), after[path], 0.0) for path in paths]
    histories = [
        jnp.where(jnp.arange(amax.shape[-1]) == step % amax.shape[-1], amax, before[path])
        for path, amax in zip(paths, amaxes, strict=True)
    ]
    # XLA updates dozens of histories in one kernel if the update is elementwise, in place, and has
    # no other reader. The barrier separates it from the reductions that follow.
    advanced = dict(zip(paths, lax.optimization_barrier(histories), strict=True))
    for shape in dict.fromkeys(history.shape for history in histories):
        same_shape = [path for path in paths if before[path].shape == shape]
        for start in range(0, len(same_shape), _HISTORIES_PER_KERNEL):
            group = same_shape[start : start + _HISTORIES_PER_KERNEL]
            largest = jnp.max(jnp.stack([advanced[path] for path in group]), axis=-1, keepdims=True)
            for index, path in enumerate(group):
                tensor = path[-1].removesuffix(_HISTORY_SUFFIX)
                scale_path = (*path[:-1], f"{tensor}_scale")
                dtype = BACKWARD_DTYPE if tensor == "output_grad" else FORWARD_DTYPE
                advanced[scale_path] = compute_scale(largest[index], before[scale_path], dtype)
    return unflatten_dict({path: advanced[path] for path in before})
