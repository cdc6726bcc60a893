"""Dot-product attention of the T5X and Pax models: by XLA from two matrix products, or by cuDNN's
fused kernels.

Each call chooses between the two from shapes and settings alone. Transformer Engine's attention is
in `rosetta.nn.transformer_engine`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rosetta.nn import attention_limits, fallback_notice

# The checkpoint_name of the attention output, by which rematerialisation policies keep it.
ATTENTION_OUTPUT = "attended"


def choose_mask_value(dtype: Any) -> float:
    """Return the number that is added to a logit which the mask hides.

    It is -1e10, or half of the lowest finite number if `dtype` cannot hold -1e10. It must be
    finite: with -inf, the softmax of a row in which everything is hidden would be NaN. Rows of
    padding are such rows.
    """
    return max(-1e10, float(jnp.finfo(dtype).min) / 2)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["valid_queries", "valid_keys", "query_segments", "key_segments", "visible"],
    meta_fields=["causal"],
)
@dataclass(frozen=True)
class Mask:
    """The keys that each query attends to. A query sees a key if no field hides it.

    Attributes:
        valid_queries: bool [batch, queries], False at padding; None if there is no padding. cuDNN
            needs the padding at the end of each row.
        valid_keys: The same for the keys, bool [batch, keys].
        causal: Hide the keys after the query's own position.
        query_segments: int32 [batch, queries], the number of the example at each position, if
            several examples are packed into one row. A query sees its own example only.
        key_segments: The same for the keys, int32 [batch, keys].
        visible: bool, broadcasts to [batch, 1, queries, keys]: any other mask, such as a prefix
            that sees itself in both directions.
    """

    valid_queries: Any = None
    valid_keys: Any = None
    causal: bool = False
    query_segments: Any = None
    key_segments: Any = None
    visible: Any = None

    @property
    def has_padding(self) -> bool:
        """Whether the mask hides padding."""
        return self.valid_queries is not None or self.valid_keys is not None

    def make_dense(self, queries: int, keys: int) -> Any:
        """Return the mask as one array.

        Args:
            queries: The number of queries.
            keys: The number of keys.

        Returns:
            bool, broadcasts to [batch, 1, queries, keys], True if the query sees the key; None if
            nothing is hidden.
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
        dense = None
        for part in parts:
            dense = part if dense is None else jnp.logical_and(dense, part)
        return dense

    def make_bias(self, queries: int, keys: int, relative: Any, dtype: Any) -> Any:
        """Return the mask and the relative position bias as one bias to add to the logits.

        Args:
            queries: The number of queries.
            keys: The number of keys.
            relative: The relative position bias [1, heads, queries, keys], or None.
            dtype: The type of the bias.

        Returns:
            `dtype`, broadcasts to [batch, heads, queries, keys]; `relative` itself if nothing is
            hidden.
        """
        visible = self.make_dense(queries, keys)
        if visible is None:
            return relative
        mask_bias = jnp.where(
            visible, jnp.asarray(0, dtype), jnp.asarray(choose_mask_value(dtype), dtype)
        )
        return mask_bias if relative is None else mask_bias + relative


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
    """Return why cuDNN's fused attention cannot compute a call; empty if it can.

    The limits are those of jax.nn.dot_product_attention of JAX 0.10. It has no dropout. It turns a
    boolean mask into a bias of [batch, heads, queries, keys], which would take the memory that
    fused attention saves.

    Args:
        dtype: The type of the activations.
        head_dim: The features of one head.
        queries: The number of queries.
        keys: The number of keys.
        mask: The mask of the call.
        biased: Whether the call has a relative position bias.
        dropout: Whether the call drops single attention weights. T5's dropout of whole keys is no
            problem: see `zero_dropped_keys`.
        float32_logits: Whether the logits are computed in float32.
    """
    if dropout:
        return "attention dropout"
    if mask.query_segments is not None:
        return "packed examples (jax.nn.dot_product_attention takes one example per row)"
    if problem := attention_limits.find_fused_problem(dtype=dtype, mask=mask):
        return problem
    if float32_logits:
        return "float32_attention_logits"
    if head_dim % 8 or head_dim > 128:
        return f"heads of {head_dim} (cuDNN takes multiples of 8 up to 128)"
    if biased and (queries % 2 or keys % 2):
        return f"an odd length ({queries} x {keys}) with relative positions"
    return ""


def zero_dropped_keys(value: Any, keep_mask: Any, *, transposed: bool = False) -> Any:
    """Return the values with zeros at the keys that dropout drops.

    T5 drops the same keys for all queries of a head. The attention weights of a dropped key are
    then zero in a whole column, and the product of weights and values is the same if the key's
    value is zero instead. A fused kernel therefore needs no dropout of its own. The caller has to
    divide by the probability of keeping a key.

    Args:
        value: [batch, keys, heads, head_dim]; with `transposed` [keys, batch, heads, head_dim].
        keep_mask: bool [batch, heads x keys], False for a dropped key.
        transposed: Whether the length is the first dimension and the batch the second.

    Returns:
        The shape and type of `value`.
    """
    batch = value.shape[1 if transposed else 0]
    keys = value.shape[0 if transposed else 1]
    mask = keep_mask.reshape(batch, value.shape[2], keys)
    mask = jnp.transpose(mask, (2, 0, 1) if transposed else (0, 2, 1))
    return jnp.where(mask[..., None], value, jnp.zeros((), value.dtype))


def compute_fused_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    relative: Any,
    mask: Mask,
    scale: float = 1.0,
    implementation: str = "cudnn",
) -> Any:
    """Compute attention by jax.nn.dot_product_attention.

    Args:
        query: [batch, queries, heads, head_dim].
        key: [batch, keys, heads, head_dim].
        value: [batch, keys, heads, head_dim].
        relative: The relative position bias [1, heads, queries, keys], or None.
        mask: Padding and the causal mask; `find_cudnn_problem` must have no objection.
        scale: The factor of the products of queries and keys, before the bias is added; 1 for T5's
            unscaled logits.
        implementation: "cudnn"; "xla" is for tests on a CPU.

    Returns:
        [batch, queries, heads, head_dim]; rows of padded queries are zero.
    """
    lengths = {}
    if mask.has_padding:  # cuDNN takes both lengths or none.
        lengths = {
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
        scale=scale,
        is_causal=mask.causal,
        implementation=implementation,
        **lengths,
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
    """Compute attention from two matrix products and a softmax, with T5's unscaled logits.

    Args:
        query: [batch, queries, heads, head_dim]; with `transposed` [queries, batch, heads,
            head_dim].
        key: [batch, keys, heads, head_dim], or transposed as `query`.
        value: The shape of `key`.
        bias: Broadcasts to [batch, heads, queries, keys] and includes the mask; or None.
        float32_logits: Compute the logits and the softmax in float32.
        drop: The function that applies dropout to the weights [batch, heads, queries, keys].
        transposed: Whether the length is the first dimension and the batch the second.

    Returns:
        The shape and type of `query`.
    """
    dtype = query.dtype
    if float32_logits:
        query, key = query.astype(jnp.float32), key.astype(jnp.float32)
    inputs = "qbhd,kbhd" if transposed else "bqhd,bkhd"
    logits = jnp.einsum(f"{inputs}->bhqk", query, key)
    if bias is not None:
        logits = logits + bias.astype(logits.dtype)
    weights = drop(jax.nn.softmax(logits).astype(dtype))
    product = "bhqk,kbhd->qbhd" if transposed else "bhqk,bkhd->bqhd"
    return checkpoint_name(jnp.einsum(product, weights, value), ATTENTION_OUTPUT)


def choose_implementation(requested: str, problem: str) -> str:
    """Return the implementation to use, and warn if it is not the requested one.

    Args:
        requested: The implementation that the settings name, for example "cudnn".
        problem: What `find_cudnn_problem` returned.

    Returns:
        "xla" if cuDNN is requested and has a problem, else `requested`.
    """
    if requested == "cudnn" and problem:
        fallback_notice.warn_once("attention by XLA instead of cuDNN", problem)
        return "xla"
    return requested
