"""Projections in FP8 with delayed scaling (Micikevicius et al. 2022, arXiv:2209.05433): e4m3 forward, e5m2 for output gradients.

Scales follow from a history of largest magnitudes, which with the scales is the state of a projection. It lives in flax's collection
`_overwrite_with_gradient` under the names of flax.linen.fp8_ops, so such checkpoints fit: what backpropagation returns for it is no gradient
but its next value. `combine` is for a step of several microbatches: all read the same scales, and the histories move once.

Fused projections keep a scale for each part of the kernel and of the output gradient. The forward product scales each part of its output.
The gradient of the input sums over the parts, so there both factors take one scale, the largest of the parts'.
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

from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flax import linen as nn

COLLECTION = "_overwrite_with_gradient"
FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
HISTORY = 1024  # steps, as flax and Transformer Engine keep
OLDEST = 8.9  # compute capability: Ada
TENSORS = ("input", "kernel", "output_grad")


def state(module: nn.Module) -> dict[str, Any]:
    """Return a projection's state: for each tensor NAME_scale [1] and NAME_amax_history [HISTORY], in float32.

    It is made with the module's parameters. Parameters without it (of a checkpoint in bfloat16) are multiplied by fresh state, scales of one.
    """
    found = {}
    for tensor in TENSORS:
        for name, make, size in ((f"{tensor}_scale", jnp.ones, 1), (f"{tensor}_amax_history", jnp.zeros, HISTORY)):
            known = module.has_variable(COLLECTION, name) or module.is_initializing()
            found[name] = module.variable(COLLECTION, name, make, (size,), jnp.float32).value if known else make((size,), jnp.float32)
    return found


def axes_of(states: Any) -> Any:
    """Return flax's metadata of axes for a tree of states, as `params_axes` has it for parameters: none is ever sharded."""
    flat = flatten_dict(unfreeze(states))
    return unflatten_dict({(*path[:-1], f"{path[-1]}_axes"): AxisMetadata(names=(None,) * leaf.ndim) for path, leaf in flat.items()})


def require(devices: Sequence[Any]) -> None:
    """UserError where a GPU among the devices has no FP8 (compute capability below 8.9). CPUs compute it slowly, for tests."""
    for device in devices:
        capability = getattr(device, "compute_capability", None)
        if device.platform == "gpu" and capability and float(capability) < OLDEST:
            raise UserError(f"{device.device_kind} (compute capability {capability}) has no FP8", "ENABLE_FP8", "switch FP8 off; it needs an Ada, Hopper or newer card")


def scale_of(history: Any, previous: Any, kind: Any) -> Any:
    """Return the scale [1] by which a tensor with this history of magnitudes fills the range of `kind`; the previous one where it has none."""
    largest = jnp.max(history, keepdims=True)
    usable = (largest > 0) & jnp.isfinite(largest)
    return jnp.where(usable, jnp.where(usable, largest, 1.0) / float(jnp.finfo(kind).max), previous)


def quantise(x: Any, scale: Any, kind: Any) -> Any:
    """Return x / scale in FP8, what is out of range at its edge."""
    edge = float(jnp.finfo(kind).max)
    return jnp.clip(x.astype(jnp.float32) / scale, -edge, edge).astype(kind)


def magnitude(x: Any) -> Any:
    """Return the largest absolute value, [1] in float32."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32).reshape(1)


def push(history: Any, newest: Any) -> Any:
    """Return a history [n] whose oldest value has made room for `newest` [1], which stands first."""
    return jnp.concatenate([newest, history[:-1]])


def contract(x: Any, kernels: Sequence[Any], states: Sequence[Mapping[str, Any]], dtype: Any) -> tuple[Any, ...]:
    """Multiply [..., inputs] with each kernel [inputs, outputs] in FP8; returns a [..., outputs] in `dtype` for each.

    Differentiated with respect to `states`, it gives their next values.
    """
    outputs: tuple[Any, ...] = _contract(jnp.dtype(dtype), x, tuple(kernels), tuple(dict(each) for each in states))
    return outputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _contract(dtype: Any, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]) -> tuple[Any, ...]:
    outputs: tuple[Any, ...] = _forward(dtype, x, kernels, states)[0]
    return outputs


def _scales(states: tuple[dict[str, Any], ...], tensor: str, kind: Any) -> list[Any]:
    return [scale_of(each[f"{tensor}_amax_history"], each[f"{tensor}_scale"], kind) for each in states]


def _largest(scales: list[Any]) -> Any:
    return functools.reduce(jnp.maximum, scales)


def _dot(kind: str, dtype: Any, left: Any, right: Any, over: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    with jax.named_scope(kind):
        return lax.dot_general(left, right, (over, ((), ())), preferred_element_type=dtype)


def _forward(dtype: Any, x: Any, kernels: tuple[Any, ...], states: tuple[dict[str, Any], ...]) -> tuple[Any, Any]:
    of_input = _largest(_scales(states, "input", FORWARD))
    of_kernels = _scales(states, "kernel", FORWARD)
    narrow_input = quantise(x, of_input, FORWARD)
    narrow_kernels = [quantise(kernel, scale, FORWARD) for kernel, scale in zip(kernels, of_kernels, strict=True)]
    product = _dot("fprop", dtype, narrow_input, jnp.concatenate(narrow_kernels, axis=1) if len(kernels) > 1 else narrow_kernels[0], ((x.ndim - 1,), (0,)))
    outputs, start = [], 0
    for kernel, scale in zip(kernels, of_kernels, strict=True):
        part = lax.slice_in_dim(product, start, start + kernel.shape[1], axis=product.ndim - 1) if len(kernels) > 1 else product
        outputs.append(part * jnp.asarray(of_input * scale, dtype))
        start += kernel.shape[1]
    seen = (magnitude(x), [magnitude(kernel) for kernel in kernels])
    return tuple(outputs), (narrow_input, kernels, states, of_input, of_kernels, seen, jnp.zeros((0,), x.dtype))


def _backward(dtype: Any, kept: Any, gradients: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    narrow_input, kernels, states, of_input, of_kernels, (input_seen, kernels_seen), like = kept
    scales = _scales(states, "output_grad", BACKWARD)
    of_gradient, of_kernel = _largest(scales), _largest(of_kernels)
    whole = jnp.concatenate(gradients, axis=-1) if len(gradients) > 1 else gradients[0]
    narrow = quantise(whole, of_gradient, BACKWARD)
    narrow_kernel = quantise(jnp.concatenate(kernels, axis=1) if len(kernels) > 1 else kernels[0], of_kernel, FORWARD)
    of_x = _dot("dgrad", dtype, narrow, narrow_kernel, ((narrow.ndim - 1,), (1,))) * jnp.asarray(of_gradient * of_kernel, dtype)
    leading = tuple(range(narrow.ndim - 1))
    of_whole = _dot("wgrad", dtype, narrow_input, narrow, (leading, leading)) * jnp.asarray(of_input * of_gradient, dtype)
    of_kernels_, following, start = [], [], 0
    for index, (kernel, before) in enumerate(zip(kernels, states, strict=True)):
        of_kernels_.append(lax.slice_in_dim(of_whole, start, start + kernel.shape[1], axis=1).astype(kernel.dtype))
        start += kernel.shape[1]
        following.append(
            {
                "input_scale": of_input,
                "input_amax_history": push(before["input_amax_history"], input_seen),
                "kernel_scale": of_kernels[index],
                "kernel_amax_history": push(before["kernel_amax_history"], kernels_seen[index]),
                "output_grad_scale": scales[index],
                "output_grad_amax_history": push(before["output_grad_amax_history"], magnitude(gradients[index])),
            }
        )
    return of_x.astype(like.dtype), tuple(of_kernels_), tuple(following)


_contract.defvjp(_forward, _backward)


def combine(states: Any, others: Any) -> Any:
    """Return the state after two microbatches that started from the same one: the same scales, the larger magnitudes."""
    return jax.tree.map(jnp.maximum, states, others)
