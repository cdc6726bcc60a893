"""Projections in FP8 with delayed scaling (Micikevicius et al. 2022, arXiv:2209.05433): e4m3
forward, e5m2 for output gradients.

Scales follow from a history of largest magnitudes, which with the scales is the state of a
projection. It lives in flax's collection `_overwrite_with_gradient`, in arrays named as those of
flax.linen.fp8_ops. What backpropagation returns for it is no gradient but what was seen: `combine`
puts that of several microbatches together, and `advance` makes the next step's state of it, for all
projections at once. (Thousands of kernels a step would do what a hundred do there.) A history is a
ring: step s stands at s modulo its length.

Fused projections keep a scale for each part of the kernel and of the output gradient. The forward
product scales each part of its output. The gradient of the input sums over the parts, so there both
factors take one scale, the largest of the parts'.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.core import unfreeze
from flax.linen.partitioning import AxisMetadata
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from rosetta.core import gpus
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.gpu_query import parse_capability
from rosetta.nn import fused_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flax import linen as nn

COLLECTION = "_overwrite_with_gradient"
FORWARD_DTYPE, BACKWARD_DTYPE = jnp.float8_e4m3fn, jnp.float8_e5m2
HISTORY_LENGTH = 1024  # steps, as flax and Transformer Engine keep
TENSORS = ("input", "kernel", "output_grad")
_HISTORY_SUFFIX = "_amax_history"
_HISTORIES_PER_KERNEL = 32  # histories read by one kernel


def get_state(module: nn.Module) -> dict[str, Any]:
    """Return a projection's state: for each tensor NAME_scale [1] and NAME_amax_history [HISTORY],
    in float32.

    It is made with the module's parameters. Parameters without it (of a checkpoint in bfloat16) are
    multiplied by fresh state, scales of one.
    """
    found = {}
    for tensor in TENSORS:
        for name, size in ((f"{tensor}_scale", 1), (f"{tensor}{_HISTORY_SUFFIX}", HISTORY_LENGTH)):
            known, make = (
                module.has_variable(COLLECTION, name) or module.is_initializing(),
                _choose_initializer(name),
            )
            found[name] = (
                module.variable(COLLECTION, name, make, (size,), jnp.float32).value
                if known
                else make((size,), jnp.float32)
            )
    return found


def _choose_initializer(name: str) -> Any:
    """Return the initialiser of an array of this name: scales of one, histories of zeros."""
    return jnp.zeros if name.endswith(_HISTORY_SUFFIX) else jnp.ones


def make_initial_states(states: Any) -> Any:
    """Return states that have seen nothing, in a tree of the shapes of others."""
    flat = flatten_dict(unfreeze(states))
    return unflatten_dict(
        {path: _choose_initializer(path[-1])(leaf.shape, leaf.dtype) for path, leaf in flat.items()}
    )


def make_axes_metadata(states: Any) -> Any:
    """Return flax's metadata of axes for a tree of states, as `params_axes` has it for parameters:
    none is ever sharded.
    """
    flat = flatten_dict(unfreeze(states))
    return unflatten_dict(
        {
            (*path[:-1], f"{path[-1]}_axes"): AxisMetadata(names=(None,) * leaf.ndim)
            for path, leaf in flat.items()
        }
    )


def require_fp8(devices: Sequence[Any]) -> None:
    """UserError where a GPU among the devices has no FP8. CPUs compute it slowly, for tests."""
    for device in devices:
        capability = getattr(device, "compute_capability", None)
        if (
            device.platform == "gpu"
            and capability
            and not gpus.FP8.supported_by(parse_capability(capability))
        ):
            raise UserError(
                f"{device.device_kind} (compute capability {capability}) has no FP8",
                "ENABLE_FP8",
                f"switch FP8 off; {gpus.FP8.requirement}",
                kind=UNSUPPORTED,
            )


def compute_scale(largest: Any, previous: Any, kind: Any) -> Any:
    """Return the scale by which a tensor of this largest magnitude fills the range of `kind`.

    It is the previous one where the magnitude is not finite, or so small that its own would be no
    normal float32, which devices flush to zero.
    """
    edge = float(jnp.finfo(kind).max)
    usable = (largest >= float(jnp.finfo(jnp.float32).tiny) * edge) & jnp.isfinite(largest)
    return jnp.where(usable, largest / edge, previous)


def quantise_tensor(x: Any, scale: Any, kind: Any) -> Any:
    """Return x / scale in FP8, what is out of range at its edge."""
    edge = float(jnp.finfo(kind).max)
    return jnp.clip(x.astype(jnp.float32) / scale, -edge, edge).astype(kind)


def compute_amaxes(parts: Sequence[Any]) -> list[Any]:
    """Return the largest absolute value of each array, [1] in float32."""
    whole = fused_kernels.join_parts(parts)
    if len(parts) == 1 or whole.ndim == parts[0].ndim:
        return [jnp.max(jnp.abs(part)).astype(jnp.float32).reshape(1) for part in parts]
    largest = jnp.max(jnp.abs(whole), axis=(*range(whole.ndim - 2), whole.ndim - 1)).astype(
        jnp.float32
    )
    return [largest[index : index + 1] for index in range(len(parts))]


def multiply_kernels(
    x: Any, kernels: Sequence[Any], states: Sequence[Mapping[str, Any]], dtype: Any
) -> tuple[Any, ...]:
    """Multiply [..., inputs] with each kernel [inputs, outputs] in FP8; returns a [..., outputs] in
    `dtype` for each.

    Differentiated with respect to `states`, it gives what was seen: the scales used, and in each
    history's place the newest magnitude throughout.
    """
    outputs: tuple[Any, ...] = _multiply_kernels(
        jnp.dtype(dtype), x, tuple(kernels), tuple(dict(each) for each in states)
    )
    return outputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply_kernels(
    dtype: Any, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> tuple[Any, ...]:
    outputs: tuple[Any, ...] = _compute_forward(dtype, x, kernels, states)[0]
    return outputs


def _list_scales(states: tuple[dict[str, Any], ...], tensor: str) -> list[Any]:
    return [each[f"{tensor}_scale"] for each in states]


def _find_largest(scales: list[Any]) -> Any:
    return functools.reduce(jnp.maximum, scales)


def _multiply_fp8(
    kind: str, dtype: Any, left: Any, right: Any, over: tuple[tuple[int, ...], tuple[int, ...]]
) -> Any:
    with jax.named_scope(kind):
        # float16 ends at 65,504, below what factors up to 448 come to before they are scaled back.
        given = jnp.bfloat16 if dtype == jnp.float16 else dtype
        return lax.dot_general(left, right, (over, ((), ())), preferred_element_type=given)


def _rescale(product: Any, left: Any, right: Any, dtype: Any) -> Any:
    """Return a product of what was quantised by these scales as one of what they stand for; the
    scales are not rounded to `dtype`.
    """
    return (product.astype(jnp.float32) * left * right).astype(dtype)


def _compute_forward(
    dtype: Any, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]
) -> tuple[Any, Any]:
    of_input = _find_largest(_list_scales(states, "input"))
    of_kernels = _list_scales(states, "kernel")
    narrow_input = quantise_tensor(x, of_input, FORWARD_DTYPE)
    narrow_kernels = [
        quantise_tensor(kernel, scale, FORWARD_DTYPE)
        for kernel, scale in zip(kernels, of_kernels, strict=True)
    ]
    product = _multiply_fp8(
        "fprop",
        dtype,
        narrow_input,
        fused_kernels.join_parts(narrow_kernels),
        ((x.ndim - 1,), (0,)),
    )
    parts = fused_kernels.split_parts(product, [kernel.shape[1] for kernel in kernels])
    outputs = [
        _rescale(part, of_input, scale, dtype)
        for part, scale in zip(parts, of_kernels, strict=True)
    ]
    seen = (compute_amaxes([x])[0], compute_amaxes(kernels))
    return tuple(outputs), (
        narrow_input,
        kernels,
        states,
        of_input,
        of_kernels,
        seen,
        jnp.zeros((0,), x.dtype),
    )


def _compute_backward(dtype: Any, kept: Any, gradients: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    narrow_input, kernels, states, of_input, of_kernels, (input_seen, kernels_seen), like = kept
    scales = _list_scales(states, "output_grad")
    of_gradient, of_kernel = _find_largest(scales), _find_largest(of_kernels)
    narrow = quantise_tensor(fused_kernels.join_parts(gradients), of_gradient, BACKWARD_DTYPE)
    narrow_kernel = fused_kernels.join_parts(
        [quantise_tensor(kernel, of_kernel, FORWARD_DTYPE) for kernel in kernels]
    )
    leading = tuple(range(narrow_input.ndim - 1))
    outputs = tuple(range(len(leading), narrow.ndim))
    of_x = _rescale(
        _multiply_fp8(
            "dgrad", dtype, narrow, narrow_kernel, (outputs, tuple(range(1, narrow_kernel.ndim)))
        ),
        of_gradient,
        of_kernel,
        dtype,
    )
    of_whole = _rescale(
        _multiply_fp8("wgrad", dtype, narrow_input, narrow, (leading, leading)),
        of_input,
        of_gradient,
        kernels[0].dtype,
    )
    of_kernels_ = fused_kernels.split_parts(of_whole, [kernel.shape[1] for kernel in kernels])
    # One by one, as what makes a gradient can then find its magnitude on the way; kernels come from
    # nowhere.
    gradients_seen = [compute_amaxes([gradient])[0] for gradient in gradients]
    seen = tuple(
        {
            **{f"{tensor}_scale": before[f"{tensor}_scale"] for tensor in TENSORS},
            "input_amax_history": jnp.broadcast_to(input_seen, before["input_amax_history"].shape),
            "kernel_amax_history": jnp.broadcast_to(
                kernel_seen, before["kernel_amax_history"].shape
            ),
            "output_grad_amax_history": jnp.broadcast_to(
                gradient_seen, before["output_grad_amax_history"].shape
            ),
        }
        for before, kernel_seen, gradient_seen in zip(
            states, kernels_seen, gradients_seen, strict=True
        )
    )
    return of_x.astype(like.dtype), tuple(of_kernels_), seen


_multiply_kernels.defvjp(_compute_forward, _compute_backward)


def combine_microbatches(seen: Any, others: Any) -> Any:
    """Return what two microbatches that started from the same state have seen: the same scales, the
    larger magnitudes.
    """
    return jax.tree.map(jnp.maximum, seen, others)


def advance_states(states: Any, seen: Any, step: Any) -> Any:
    """Return the state after a step.

    Args:
      states: a tree of projections' states, as before the step; those of layers that are looped
        over may be stacked, [layers, ...].
      seen: the tree that backpropagation gave for it.
      step: the step's number, int32 [].
    """
    before, found = flatten_dict(unfreeze(states)), flatten_dict(unfreeze(seen))
    paths = [path for path in before if path[-1].endswith(_HISTORY_SUFFIX)]
    # Elementwise, in place and with no other reader, XLA does dozens of histories in one kernel;
    # hence the barrier before they are read.
    newest = [
        jnp.where(jnp.isfinite(found[path]), found[path], 0.0) for path in paths
    ]  # an overflow must not stand in the way of the others
    histories = [
        jnp.where(jnp.arange(value.shape[-1]) == step % value.shape[-1], value, before[path])
        for path, value in zip(paths, newest, strict=True)
    ]
    following = dict(zip(paths, lax.optimization_barrier(histories), strict=True))
    for shape in dict.fromkeys(history.shape for history in histories):
        alike = [path for path in paths if before[path].shape == shape]
        for start in range(0, len(alike), _HISTORIES_PER_KERNEL):
            group = alike[start : start + _HISTORIES_PER_KERNEL]
            largest = jnp.max(
                jnp.stack([following[path] for path in group]), axis=-1, keepdims=True
            )
            for index, path in enumerate(group):
                tensor = path[-1].removesuffix(_HISTORY_SUFFIX)
                scale = (*path[:-1], f"{tensor}_scale")
                following[scale] = compute_scale(
                    largest[index],
                    before[scale],
                    BACKWARD_DTYPE if tensor == TENSORS[-1] else FORWARD_DTYPE,
                )
    return unflatten_dict({path: following[path] for path in before})
