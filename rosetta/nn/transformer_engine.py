"""Transformer Engine's FP8 products and attention inside rosetta's layers.

Transformer Engine (TE) is imported only if the settings ask for it. Parameters and FP8 state are
the same as without it (`rosetta.nn.fp8`), so a checkpoint does not depend on what computed it. TE
gets the scales, quantises and multiplies, and returns the largest magnitudes (amaxes) that it saw.
rosetta decides when a scale changes.

No kernel of TE was run with this module: without a GPU driver, TE's compiled extension cannot be
loaded. The module was written to version 2.20.2 (transformer_engine/jax: dense.py,
quantize/{quantizer,metadata,helper}.py, sharding.py, flax/transformer.py, attention.py). The tests
cover everything up to TE's interface, with a stand-in for its few names. docs/explanation/fp8.md
says what was tried beyond that.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rosetta.core.errors import CONFLICT, FAILED, UNSUPPORTED, UserError
from rosetta.core.transformer_engine import disables_fused_attention, require_transformer_engine
from rosetta.nn import (
    attention_limits,
    fallback_notice,
    fp8,
    fused_kernels,
    mesh_axes,
    sharded_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.nn.attention import Mask

# cuBLASLt's rule for 8-bit types: every dimension of a product is a multiple of this.
DIMENSION_MULTIPLE = 16
_MODULES = ("dense", "flax", "quantize", "quantize.helper", "sharding", "attention")
_WHERE = "Transformer Engine"
_mesh_guard = ExitStack()


def import_transformer_engine() -> Any:
    """Return the module transformer_engine.jax.

    Raises:
        UserError: Transformer Engine is not installed, or cannot be loaded, for example without a
            GPU driver.
    """
    require_transformer_engine()
    try:
        te = importlib.import_module("transformer_engine.jax")
        for name in _MODULES:
            importlib.import_module(f"transformer_engine.jax.{name}")
    except (ImportError, OSError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UserError(
            f"cannot be loaded ({reason})",
            _WHERE,
            "use a machine with an NVIDIA driver, or set ENABLE_TE=0",
            kind=FAILED,
        ) from error
    return te


def _has_mesh_axis(te: Any, axis: str) -> bool:
    """Return whether the current mesh has an axis; `te` is transformer_engine.jax."""
    try:
        te.sharding.get_mesh_axis_size(axis)
    except AssertionError:  # TE asserts that the axis exists.
        return False
    return True


def _declare_mesh_axes(te: Any) -> None:
    """Tell Transformer Engine what each axis of the current mesh is for.

    TE keeps this in a global. It stays after this call, because the backward pass is traced later.
    """
    axes = {
        axis
        for axis in (*mesh_axes.AXES, mesh_axes.PAX_MODEL)
        if te.sharding.is_mesh_available() and _has_mesh_axis(te, axis)
    }
    # If two axes split the batch, TE's resource for fully sharded data parallelism (fsdp) is the
    # axis with the faster network.
    if mesh_axes.REPLICA in axes:
        resources = {"dp_resource": mesh_axes.REPLICA, "fsdp_resource": mesh_axes.DATA}
    else:
        resources = {"dp_resource": mesh_axes.DATA}
    has_pax_axis = mesh_axes.PAX_MODEL in axes
    resources["tp_resource"] = mesh_axes.PAX_MODEL if has_pax_axis else mesh_axes.MODEL
    known = {resource: axis for resource, axis in resources.items() if axis in axes}
    _mesh_guard.close()
    _mesh_guard.enter_context(te.sharding.global_shard_guard(te.sharding.MeshResource(**known)))


def find_product_problem(rows: int, inputs: int, outputs: Sequence[int]) -> str:
    """Return why Transformer Engine cannot compute a product in FP8; empty if it can.

    Args:
        rows: The rows of the left factor [rows, inputs].
        inputs: The columns of the left factor.
        outputs: The width of each kernel [inputs, width] in the product.
    """
    if any(size % DIMENSION_MULTIPLE for size in (rows, inputs, *outputs)):
        widths = "+".join(map(str, outputs))
        return (
            f"a product of {rows} rows, {inputs} by {widths}: Transformer Engine takes multiples "
            f"of {DIMENSION_MULTIPLE}"
        )
    if len(set(outputs)) > 1:
        return "projections of different widths in one product"
    return ""


def multiply_kernels(
    x: Any,
    kernels: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    dtype: Any,
    axes: Sequence[Sequence[str]] = (),
) -> tuple[Any, ...]:
    """Multiply as `rosetta.nn.fp8.multiply_kernels`, but by Transformer Engine.

    XLA multiplies what Transformer Engine cannot, to the same numbers, and a warning says so.
    Several kernels become one [inputs, parts, outputs] with one scale. Its amax enters the history
    of each kernel.

    Args:
        x: [..., inputs].
        kernels: [inputs, outputs] each.
        states: The FP8 state of each kernel's projection.
        dtype: The type of the outputs.
        axes: The logical names of the dimensions of each kernel. Kernels that are sharded over the
            data axes are gathered in their own type. Empty if none is.

    Returns:
        For each kernel [..., outputs].
    """
    te = import_transformer_engine()
    _declare_mesh_axes(te)
    widths = [kernel.shape[1] for kernel in kernels]
    problem = find_product_problem(math.prod(x.shape[:-1]), x.shape[-1], widths)
    if problem:
        fallback_notice.warn_once(f"FP8 by XLA {fallback_notice.INSTEAD_OF_TE}", problem)
        return fp8.multiply_kernels(x, kernels, states, dtype, axes)
    own_states = [dict(state) for state in states]
    te_states = {
        tensor: _prepare_scale(*_collect_states(own_states, tensor)) for tensor in fp8.TENSORS
    }
    # TE rounds the kernel once, from the type of the parameters, as it does in its own layers. If
    # the kernel was in bfloat16, it would be rounded twice.
    gathered = [
        sharded_parameters.cast_parameter(kernel, names, kernel.dtype)
        for names, kernel in zip(axes or [()] * len(kernels), kernels, strict=True)
    ]
    kernel = _match_gradient_dtype(fused_kernels.join_parts(gathered))
    product = te.dense.dense(
        x,
        kernel,
        contracting_dims=((x.ndim - 1,), (0,)),
        quantizer_set=_make_quantizers(te, te_states),
    )
    return tuple(fused_kernels.split_parts(product, widths))


@jax.custom_vjp
def _match_gradient_dtype(kernel: Any) -> Any:
    """Return the kernel itself; its gradient is cast from the activations' type to the kernel's."""
    return kernel


_match_gradient_dtype.defvjp(
    lambda kernel: (kernel, jnp.zeros((0,), kernel.dtype)),
    lambda like, gradient: (gradient.astype(like.dtype),),
)


def _make_quantizers(te: Any, te_states: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return TE's set of quantizers for delayed scaling.

    Args:
        te: transformer_engine.jax.
        te_states: For each name in fp8.TENSORS the scale and the history of `_prepare_scale`.
    """
    recipe = importlib.import_module("transformer_engine.common.recipe").DelayedScaling()
    algorithm = te.quantize.helper.AmaxComputeAlgo.MAX
    metadata = {}
    for te_name, tensor in (("x", "input"), ("kernel", "kernel"), ("grad", "output_grad")):
        scale, history = te_states[tensor]
        metadata[te_name] = te.quantize.QuantizeMeta(
            margin=0.0, amax_compute_algo=algorithm, scale=scale, amax_history=history
        )
    return te.quantize.QuantizerFactory.create_set(
        fp8_recipe=recipe, quantize_meta_set=te.quantize.QuantizeMetaSet(**metadata)
    )


def _collect_states(
    states: Sequence[Mapping[str, Any]], tensor: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the scales [1] and the histories of one of fp8.TENSORS, one for each state."""
    scales = tuple(state[f"{tensor}_scale"] for state in states)
    histories = tuple(state[f"{tensor}_amax_history"] for state in states)
    return scales, histories


@jax.custom_vjp
def _prepare_scale(scales: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the scale and the history that TE quantises with.

    TE multiplies by its scale, so the result is the inverse of the largest scale of the parts, [1].
    The history [2] is empty. In the backward pass, TE returns its next history, which has only the
    amax that TE saw. That amax becomes the observed history of each part.
    """
    largest = functools.reduce(jnp.maximum, scales)
    return 1.0 / largest, jnp.zeros((2,), jnp.float32)


def _prepare_scale_forward(scales: tuple[Any, ...], histories: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the outputs, and (scales, histories) for the backward pass."""
    return _prepare_scale(scales, histories), (scales, histories)


def _prepare_scale_backward(
    residuals: tuple[Any, Any], te_gradients: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return the observed scales and histories, as `rosetta.nn.fp8.multiply_kernels` does."""
    scales, histories = residuals
    amax = jnp.max(te_gradients[1], keepdims=True)
    return scales, tuple(jnp.broadcast_to(amax, history.shape) for history in histories)


_prepare_scale.defvjp(_prepare_scale_forward, _prepare_scale_backward)


def choose_implementation(*, dtype: Any, mask: Mask) -> str:
    """Return whether Transformer Engine or XLA computes an attention, and warn if it is XLA.

    Only cuDNN knows some of its limits: `compute_attention` meets those.

    Args:
        dtype: The type of the activations.
        mask: The mask of the call.

    Returns:
        "te" or "xla".

    Raises:
        UserError: Transformer Engine is not installed or cannot be loaded.
    """
    import_transformer_engine()
    if problem := attention_limits.find_fused_problem(dtype=dtype, mask=mask):
        fallback_notice.warn_once(f"attention by XLA {fallback_notice.INSTEAD_OF_TE}", problem)
        return "xla"
    return "te"


def compute_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    relative: Any,
    mask: Mask,
    transposed: bool,
    scale: float = 1.0,
    dropout_rate: float = 0.0,
) -> Any:
    """Compute attention by Transformer Engine's DotProductAttention.

    The caller must be a method of a Flax module.

    Args:
        query: [batch, queries, heads, head_dim]; with `transposed` [queries, batch, heads,
            head_dim].
        key: [batch, keys, kv_heads, head_dim], or transposed as `query`; kv_heads divides heads.
        value: The shape of `key`.
        relative: The relative position bias [1, heads, queries, keys], or None.
        mask: Padding and the causal mask.
        transposed: Whether the length is the first dimension and the batch the second.
        scale: The factor of the products of queries and keys, before the bias is added; 1 for T5's
            unscaled logits.
        dropout_rate: The probability with which a single attention weight is dropped.

    Returns:
        The shape of `query`; rows of padded queries are zero.

    Raises:
        UserError: TE has no fused kernel for this call. Its unfused attention would compute
            something else than the settings ask for.
    """
    if disables_fused_attention(os.environ):
        raise UserError(
            "is 0", "NVTE_FUSED_ATTN", "unset it, or set ATTENTION to xla", kind=CONFLICT
        )
    te = import_transformer_engine()
    _declare_mesh_axes(te)
    length_axis, batch_axis = (0, 1) if transposed else (1, 0)
    lengths = [
        attention_limits.count_valid_positions(
            valid, array.shape[batch_axis], array.shape[length_axis]
        )
        for array, valid in ((query, mask.valid_queries), (key, mask.valid_keys))
    ]
    mask_type = _name_mask_type(mask)
    module = te.flax.DotProductAttention(
        head_dim=query.shape[-1],
        num_attention_heads=query.shape[-2],
        num_gqa_groups=key.shape[-2],
        attention_dropout=dropout_rate,
        attn_mask_type=mask_type,
        attn_bias_type="no_bias" if relative is None else "post_scale_bias",
        qkv_layout="bshd_bshd_bshd",
        scale_factor=scale,
        transpose_batch_sequence=transposed,
    )
    sequences = te.attention.SequenceDescriptor.from_seqlens(tuple(lengths))
    bias = None if relative is None else jnp.asarray(relative, query.dtype)
    with warnings.catch_warnings():
        # If TE has no fused kernel, it warns and computes unfused attention.
        warnings.filterwarnings("error", message="(?s).*unfused attention")
        try:
            return module(query, key, value, sequences, bias, deterministic=dropout_rate == 0)
        except UserWarning as warning:
            call = (
                f"{query.shape[length_axis]} queries, {key.shape[length_axis]} keys, heads of "
                f"{query.shape[-1]}, {mask_type}"
            )
            raise UserError(
                f"Transformer Engine has no fused attention for {call}",
                "ATTENTION",
                "set it to cudnn or xla",
                kind=UNSUPPORTED,
            ) from warning


def _name_mask_type(mask: Mask) -> str:
    """Return TE's name of a mask of padding and causality."""
    if mask.has_padding:
        return "padding_causal" if mask.causal else "padding"
    return "causal" if mask.causal else "no_mask"
