"""Dot-product attention: by XLA from matrix products, or by cuDNN's fused kernels, chosen for each
call from shapes and settings alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rosetta.nn import attention_limits, fallback_notice

ATTENTION_OUTPUT = (
    "attended"  # the name that remat policies save the output of `compute_plain_attention` by
)


def choose_mask_value(dtype: Any) -> float:
    """Return what is added to the logits that a mask leaves out: -1e10, or half of the lowest
    number where `dtype` ends before it.

    It must be finite: the softmax of a row that sees nothing, as those of padding do, would else be
    no number.
    """
    return max(-1e10, float(jnp.finfo(dtype).min) / 2)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["valid_queries", "valid_keys", "query_segments", "key_segments", "visible"],
    meta_fields=["causal"],
)
@dataclass(frozen=True)
class Mask:
    """Who attends to whom. All fields are optional; what is not given masks nothing.

    Attributes:
      valid_queries, valid_keys: bool [batch, length], False at padding. For cuDNN the padding
        must be at the end of each row.
      causal: a query sees no key after itself.
      query_segments, key_segments: int [batch, length]; examples packed into one row see their own
        segment only.
      visible: bool [batch, 1, queries, keys] for anything else, such as a prefix that sees itself
        in both directions.
    """

    valid_queries: Any = None
    valid_keys: Any = None
    causal: bool = False
    query_segments: Any = None
    key_segments: Any = None
    visible: Any = None

    @property
    def has_padding(self) -> bool:
        """Is there padding to leave out?"""
        return self.valid_queries is not None or self.valid_keys is not None

    def make_dense(self, queries: int, keys: int) -> Any:
        """Return it as one bool array that broadcasts to [batch, 1, queries, keys], or None where
        nothing is masked.
        """
        parts = []
        if self.valid_queries is not None:
            parts.append(self.valid_queries[:, None, :, None])
        if self.valid_keys is not None:
            parts.append(self.valid_keys[:, None, None, :])
        if self.causal:
            parts.append((jnp.arange(queries)[:, None] >= jnp.arange(keys)[None, :])[None, None])
        if self.query_segments is not None:
            parts.append(
                self.query_segments[:, None, :, None] == self.key_segments[:, None, None, :]
            )
        if self.visible is not None:
            parts.append(self.visible)
        whole = None
        for part in parts:
            whole = part if whole is None else jnp.logical_and(whole, part)
        return whole

    def make_bias(self, queries: int, keys: int, relative: Any, dtype: Any) -> Any:
        """Return mask and relative bias [1, heads, queries, keys] as one bias in `dtype` that is
        added to the logits, or None.
        """
        visible = self.make_dense(queries, keys)
        if visible is None:
            return relative
        hidden = jnp.where(
            visible, jnp.asarray(0, dtype), jnp.asarray(choose_mask_value(dtype), dtype)
        )
        return hidden if relative is None else hidden + relative


def find_cudnn_problem(
    *,
    dtype: Any,
    head_dim: int,
    queries: int,
    keys: int,
    mask: Mask,
    biased: bool,
    dropout: bool,
    float32_logits: bool,
) -> str:
    """Say why cuDNN's fused attention cannot do a call, or nothing if it can.

    The limits are those of JAX's public entry to it (jax.nn.dot_product_attention, 0.10), which
    offers no dropout and whose boolean masks become a bias of [batch, heads, queries, keys], which
    would cost the memory that fusing is to save.
    """
    if dropout:
        return "attention dropout"
    if reason := attention_limits.find_fused_problem(dtype=dtype, mask=mask):
        return reason
    if float32_logits:
        return "float32_attention_logits"
    if head_dim % 8 or head_dim > 128:
        return f"heads of {head_dim} (it takes multiples of 8 up to 128)"
    if biased and (queries % 2 or keys % 2):
        return f"an odd length ({queries} x {keys}) with relative positions"
    return ""


def compute_fused_attention(
    query: Any, key: Any, value: Any, *, relative: Any, mask: Mask, implementation: str = "cudnn"
) -> Any:
    """Attention by jax.nn.dot_product_attention with T5's unscaled logits.

    Shapes: query [batch, queries, heads, depth], key and value [batch, keys, heads, depth],
    relative [1, heads, queries, keys] or None. Returns [batch, queries, heads, depth]; rows of
    padded queries are zero.
    """
    rows = {}
    if mask.has_padding:  # cuDNN wants both lengths or none
        rows = {
            "query_seq_lengths": attention_limits.count_valid_positions(
                mask.valid_queries, *query.shape[:2]
            ),
            "key_value_seq_lengths": attention_limits.count_valid_positions(
                mask.valid_keys, *key.shape[:2]
            ),
        }
    bias = None if relative is None else jnp.asarray(relative, query.dtype)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        scale=1.0,
        is_causal=mask.causal,
        implementation=implementation,
        **rows,
    )


def compute_plain_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    bias: Any,
    float32_logits: bool,
    drop: Any,
    transposed: bool = False,
) -> Any:
    """Attention from two matrix products and a softmax.

    Shapes: query [batch, queries, heads, depth], key and value [batch, keys, heads, depth], or with
    `transposed` the length first and the batch second; bias broadcasts to [batch, heads, queries,
    keys], masks included. `drop` is applied to the weights of that shape. Returns the shape of
    query.
    """
    dtype = query.dtype
    if float32_logits:
        query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    rows = "qbhd,kbhd" if transposed else "bqhd,bkhd"
    logits = jnp.einsum(f"{rows}->bhqk", query, key)
    if bias is not None:
        logits = logits + bias.astype(logits.dtype)
    weights = drop(jax.nn.softmax(logits).astype(dtype))
    return checkpoint_name(
        jnp.einsum("bhqk,kbhd->qbhd" if transposed else "bhqk,bkhd->bqhd", weights, value),
        ATTENTION_OUTPUT,
    )


def choose_implementation(asked: str, unfit: str) -> str:
    """Return the implementation to use: what was asked for, or XLA, with the reason said."""
    if asked == "cudnn" and unfit:
        fallback_notice.warn_once("attention by XLA instead of cuDNN", unfit)
        return "xla"
    return asked
