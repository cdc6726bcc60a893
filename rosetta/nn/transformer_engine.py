"""Transformer Engine's products in FP8 and its attention, within rosetta's own layers. It is
imported only where it is asked for.

Parameters and FP8 state stay what they are without it (the state that of rosetta.nn.fp8), so that a
checkpoint does not know who computed: Transformer Engine is handed the scales, and hands back the
largest magnitudes it saw. It quantises and multiplies; when a scale moves is ours.

None of Transformer Engine's kernels was run with this: without a driver its compiled extension
cannot be loaded. Written to version 2.20.2 (transformer_engine/jax: dense.py,
quantize/{quantizer,metadata,helper}.py, sharding.py, flax/transformer.py, attention.py). What is
tested is everything on this side of its interface, against a stand-in that has the interface's few
names; docs/explanation/fp8.md says what was tried beyond that.
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

from rosetta.core import transformer_engine as package
from rosetta.core.errors import CONFLICT, FAILED, UNSUPPORTED, UserError
from rosetta.nn import attention_limits, fallback_notice, fp8, fused_kernels, mesh_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.nn.attention import Mask

DIMENSION_MULTIPLE = 16  # of every dimension of a product in FP8 (cuBLASLt's rule for 8-bit types)
_MODULES = ("dense", "flax", "quantize", "quantize.helper", "sharding", "attention")
_WHERE = "Transformer Engine"
_mesh_guard = ExitStack()


def import_transformer_engine() -> Any:
    """Return transformer_engine.jax; UserError where it is not installed, or cannot be loaded (it
    needs a driver).
    """
    package.require_transformer_engine()
    try:
        found = importlib.import_module("transformer_engine.jax")
        for name in _MODULES:
            importlib.import_module(f"transformer_engine.jax.{name}")
    except (ImportError, OSError, RuntimeError) as problem:
        reason = str(problem).strip().splitlines()
        raise UserError(
            f"cannot be loaded ({reason[0] if reason else type(problem).__name__})",
            _WHERE,
            "use a machine with an NVIDIA driver, or set ENABLE_TE=0",
            kind=FAILED,
        ) from problem
    return found


def _has_mesh_axis(te: Any, axis: str) -> bool:
    try:
        te.sharding.get_mesh_axis_size(axis)
    except AssertionError:  # how it says that there is none
        return False
    return True


def _declare_mesh_axes(te: Any) -> Any:
    """Tell Transformer Engine, which keeps this in a global, which of the current mesh's axes are
    what.

    It stays so after this call, since the backward pass is traced later.
    """
    there = {
        axis
        for axis in (*mesh_axes.AXES, mesh_axes.PAX_MODEL)
        if te.sharding.is_mesh_available() and _has_mesh_axis(te, axis)
    }
    # Of two axes that a batch lies over, the faster one is what it calls fully sharded data
    # parallelism's.
    batch = (
        {"dp_resource": mesh_axes.REPLICA, "fsdp_resource": mesh_axes.DATA}
        if mesh_axes.REPLICA in there
        else {"dp_resource": mesh_axes.DATA}
    )
    axes = {
        resource: axis
        for resource, axis in (
            batch
            | {
                "tp_resource": mesh_axes.PAX_MODEL
                if mesh_axes.PAX_MODEL in there
                else mesh_axes.MODEL
            }
        ).items()
        if axis in there
    }
    _mesh_guard.close()
    _mesh_guard.enter_context(te.sharding.global_shard_guard(te.sharding.MeshResource(**axes)))
    return te


def find_product_problem(rows: int, inputs: int, outputs: Sequence[int]) -> str:
    """Say why a product [rows, inputs] times [inputs, outputs], for each of `outputs`, is none for
    its FP8, or nothing.
    """
    odd = [size for size in (rows, inputs, *outputs) if size % DIMENSION_MULTIPLE]
    if odd:
        return (
            f"a product of {rows} rows, {inputs} by {'+'.join(map(str, outputs))}: it takes "
            f"multiples of {DIMENSION_MULTIPLE}"
        )
    return "projections of different widths in one product" if len(set(outputs)) > 1 else ""


def multiply_kernels(
    x: Any, kernels: Sequence[Any], states: Sequence[Mapping[str, Any]], dtype: Any
) -> tuple[Any, ...]:
    """As rosetta.nn.fp8.multiply_kernels, by Transformer Engine; what it cannot take is multiplied
    by XLA, to the same numbers, and a line says so.

    Several kernels are one [inputs, n, outputs], with one scale for all: the largest magnitude over
    them enters the history of each.
    """
    te = _declare_mesh_axes(import_transformer_engine())
    reason = find_product_problem(
        math.prod(x.shape[:-1]), x.shape[-1], [kernel.shape[1] for kernel in kernels]
    )
    if reason:
        fallback_notice.warn_once("FP8 by XLA instead of Transformer Engine", reason)
        return fp8.multiply_kernels(x, kernels, states, dtype)
    held = [dict(each) for each in states]
    lent = {tensor: _prepare_scale(*_collect_states(held, tensor)) for tensor in fp8.TENSORS}
    # Rounded once, from the parameters' type, as its own layers do; through bfloat16 they would be
    # rounded twice.
    whole = _match_gradient_dtype(fused_kernels.join_parts(kernels))
    product = te.dense.dense(
        x, whole, contracting_dims=((x.ndim - 1,), (0,)), quantizer_set=_make_quantizers(te, lent)
    )
    return tuple(fused_kernels.split_parts(product, [kernel.shape[1] for kernel in kernels]))


@jax.custom_vjp
def _match_gradient_dtype(kernel: Any) -> Any:
    """Return the kernel, whose gradient, which comes in the activations' type, gets the
    kernel's.
    """
    return kernel


_match_gradient_dtype.defvjp(
    lambda kernel: (kernel, jnp.zeros((0,), kernel.dtype)),
    lambda like, gradient: (gradient.astype(like.dtype),),
)


def _make_quantizers(te: Any, lent: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a set of quantisers for delayed scaling with these scales and histories."""
    recipe = importlib.import_module("transformer_engine.common.recipe").DelayedScaling()
    largest = te.quantize.helper.AmaxComputeAlgo.MAX
    made = {}
    for theirs, ours in (("x", "input"), ("kernel", "kernel"), ("grad", "output_grad")):
        scale, history = lent[ours]
        made[theirs] = te.quantize.QuantizeMeta(
            margin=0.0, amax_compute_algo=largest, scale=scale, amax_history=history
        )
    return te.quantize.QuantizerFactory.create_set(
        fp8_recipe=recipe, quantize_meta_set=te.quantize.QuantizeMetaSet(**made)
    )


def _collect_states(
    states: Sequence[Mapping[str, Any]], tensor: str
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(each[f"{tensor}_scale"] for each in states), tuple(
        each[f"{tensor}_amax_history"] for each in states
    )


@jax.custom_vjp
def _prepare_scale(scales: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return what Transformer Engine quantises with: the inverse of the largest of the parts'
    scales, [1], and an empty history, [2].

    Backwards, its next history, in which the magnitude it saw stands alone, becomes what the parts
    have seen.
    """
    largest = functools.reduce(jnp.maximum, scales)
    return 1.0 / largest, jnp.zeros((2,), jnp.float32)


def _prepare_scale_forward(scales: tuple[Any, ...], histories: tuple[Any, ...]) -> tuple[Any, Any]:
    return _prepare_scale(scales, histories), (scales, histories)


def _prepare_scale_backward(kept: Any, following: tuple[Any, Any]) -> tuple[Any, Any]:
    scales, histories = kept
    seen = jnp.max(following[1], keepdims=True)
    return scales, tuple(jnp.broadcast_to(seen, history.shape) for history in histories)


_prepare_scale.defvjp(_prepare_scale_forward, _prepare_scale_backward)


def choose_implementation(*, dtype: Any, mask: Mask, dropout: bool) -> str:
    """Return "te", or "xla" with the reason said; what only cuDNN knows it is asked when it is
    called. UserError where there is no Transformer Engine.
    """
    import_transformer_engine()
    if reason := attention_limits.find_fused_problem(dtype=dtype, mask=mask):
        fallback_notice.warn_once("attention by XLA instead of Transformer Engine", reason)
        return "xla"
    if dropout:
        fallback_notice.warn_once(
            "attention's dropout by Transformer Engine",
            "it drops single weights, where T5 drops a key for all queries of a row",
        )
    return "te"


def compute_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    relative: Any,
    mask: Mask,
    dropout_rate: float,
    deterministic: bool,
    transposed: bool,
) -> Any:
    """Attention by Transformer Engine's DotProductAttention with T5's unscaled logits, called
    within a flax module.

    Shapes: query [batch, queries, heads, depth], key and value [batch, keys, heads or a divisor,
    depth], or with `transposed` the length first and the batch second; relative [1, heads, queries,
    keys] or None. Returns the shape of query; rows of padded queries are zero.

    Raises:
      UserError: it has no fused kernel for this call. Its own, unfused way would compute something
        else than was asked for.
    """
    if package.disables_fused_attention(os.environ):
        raise UserError(
            "is 0", "NVTE_FUSED_ATTN", "unset it, or set ATTENTION to xla", kind=CONFLICT
        )
    te = _declare_mesh_axes(import_transformer_engine())
    along, across = (0, 1) if transposed else (1, 0)
    counts = [
        attention_limits.count_valid_positions(valid, each.shape[across], each.shape[along])
        for each, valid in ((query, mask.valid_queries), (key, mask.valid_keys))
    ]
    kind = (
        ("padding_causal" if mask.causal else "padding")
        if mask.has_padding
        else ("causal" if mask.causal else "no_mask")
    )
    module = te.flax.DotProductAttention(
        head_dim=query.shape[-1],
        num_attention_heads=query.shape[-2],
        num_gqa_groups=key.shape[-2],
        attention_dropout=0.0 if deterministic else dropout_rate,
        attn_mask_type=kind,
        attn_bias_type="no_bias" if relative is None else "post_scale_bias",
        qkv_layout="bshd_bshd_bshd",
        scale_factor=1.0,
        transpose_batch_sequence=transposed,
    )
    described = te.attention.SequenceDescriptor.from_seqlens(tuple(counts))
    bias = None if relative is None else jnp.asarray(relative, query.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "error", message="(?s).*unfused attention"
        )  # how it says that there is no kernel, before it goes on without
        try:
            return module(query, key, value, described, bias, deterministic=deterministic)
        except UserWarning as problem:
            shape = (
                f"{query.shape[along]} queries, {key.shape[along]} keys, heads of "
                f"{query.shape[-1]}, {kind}"
            )
            raise UserError(
                f"Transformer Engine has no fused attention for {shape}",
                "ATTENTION",
                "set it to cudnn or xla",
                kind=UNSUPPORTED,
            ) from problem
