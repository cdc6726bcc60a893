"""praxis' self-attention with the products between queries, keys and values done by cuDNN or
Transformer Engine.

Parameters, projections and what is computed beside these products are the base classes'. Rows must
be causal and have their padding at the end: a token then sees no padding, and what padding sees
counts for nothing. What a fused kernel cannot do is done by the base class, and a line says why.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from praxis import base_layer
from praxis.layers import attentions, multi_query_attention

from rosetta.nn import attention, fallback_notice, transformer_engine
from rosetta.nn.attention import Mask

_CAUSAL = Mask(causal=True)


class _TransformerEngine(nn.Module):
    """Where Transformer Engine's attention, a flax module without parameters, lives within a praxis
    layer.
    """

    dropout_rate: float
    deterministic: bool

    @nn.compact
    def __call__(self, query: Any, key: Any, value: Any, relative: Any) -> Any:
        return transformer_engine.compute_attention(
            query,
            key,
            value,
            relative=relative,
            mask=_CAUSAL,
            dropout_rate=self.dropout_rate,
            deterministic=self.deterministic,
            transposed=False,
        )


class _Fused(base_layer.BaseLayer):
    """What both layers share. It stands behind praxis' class among their bases, since the fields
    for their layout are that one's.

    Attributes:
      by: "cudnn" or "te".
      packed: rows hold several examples.
      implementation: of jax.nn.dot_product_attention.
    """

    by: str = "cudnn"
    packed: bool = False
    implementation: str = "cudnn"

    def _choose_kernel(
        self, queries: int, keys: int, dtype: Any, relative: Any, reason: str = ""
    ) -> str:
        """Return who computes a call: "cudnn", "te", or "xla" with the reason said."""
        dropout = self.atten_dropout_prob > 0 and not self.do_eval
        reason = reason or self._find_misfit(relative)
        if self.by == "te":
            if not reason:
                return transformer_engine.choose_implementation(
                    dtype=dtype, mask=_CAUSAL, dropout=dropout
                )
            fallback_notice.warn_once("attention by XLA instead of Transformer Engine", reason)
            return "xla"
        depth = self.dim_per_head or self.hidden_dim // self.num_heads
        how = {
            "head_dim": depth,
            "queries": queries,
            "keys": keys,
            "biased": relative is not None,
            "dropout": dropout,
            "float32_logits": False,
        }
        if self.implementation == "xla":
            how["dtype"] = jnp.bfloat16  # any will do
        return attention.choose_implementation(
            "cudnn",
            reason or attention.find_cudnn_problem(**{"dtype": dtype, "mask": _CAUSAL, **how}),
        )

    def _find_misfit(self, relative: Any) -> str:
        if self.packed:
            return "packed examples"
        if self.atten_logit_cap and self.atten_logit_cap > 0:
            return "capped logits"
        if self.attention_extra_logit is not None:
            return "an extra logit in the softmax"
        if self.zero_fully_masked:
            return "rows that see nothing are to be zero"
        if getattr(self, "local_window_size", None) is not None:
            return "a local window"
        return "a bias for each row" if relative is not None and relative.shape[0] != 1 else ""

    def _attend(self, who: str, query: Any, key: Any, value: Any, relative: Any) -> Any:
        """Attend with scaled queries [batch, length, heads, depth] to keys and values [batch,
        length, heads or a divisor, depth].
        """
        if who == "te":
            made = _TransformerEngine(
                self.atten_dropout_prob, self.do_eval or not self.atten_dropout_prob, parent=None
            )
            keys = {} if made.deterministic else {"dropout": self.next_prng_key()}
            found = made.apply({}, query, key, value, relative, rngs=keys)
        else:
            found = attention.compute_fused_attention(
                query,
                key,
                value,
                relative=relative,
                mask=_CAUSAL,
                implementation=self.implementation,
            )
        return self._shard_blnh(checkpoint_name(found, "context"))


class DotProductAttention(attentions.DotProductAttention, _Fused):
    """praxis' DotProductAttention."""

    def _dot_atten(
        self, query: Any, key: Any, value: Any, atten_mask: Any, relative_bias: Any = None
    ) -> tuple[Any, Any]:
        who = self._choose_kernel(query.shape[1], key.shape[1], query.dtype, relative_bias)
        if who == "xla":
            found: tuple[Any, Any] = super()._dot_atten(
                query, key, value, atten_mask, relative_bias
            )
            return found
        query, key, value = (self._shard_blnh(each) for each in (query, key, value))
        query = self._scale_query(query)
        if self.scale_logits_by_head_dims:
            query *= query.shape[-1] ** -0.5
        return self._attend(who, query, key, value, relative_bias), None


class MultiQueryAttention(multi_query_attention.MultiQueryDotProductAttention, _Fused):
    """praxis' MultiQueryDotProductAttention: fewer heads of keys and values than of queries.

    No key or value is repeated.
    """

    def __call__(
        self,
        query_vec: Any,
        key_vec: Any,
        value_vec: Any,
        atten_mask: Any,
        query_segment_pos: Any = None,
        key_segment_pos: Any = None,
    ) -> tuple[Any, Any]:
        """As the base class, whose decoding with a cache it leaves alone; the second value, the
        weights, is None where a kernel keeps them.

        Args:
          query_vec: [batch, length, features].
          key_vec: the same.
          value_vec: the same.
          atten_mask: added to the logits, [batch or 1, 1, length or 1, length].
          query_segment_pos: each token's position in its example, [batch, length].
          key_segment_pos: the same.
        """
        who = self._choose_call_kernel(query_vec.shape[1], key_vec.shape[1])
        if who == "xla":
            found: tuple[Any, Any] = super().__call__(
                query_vec, key_vec, value_vec, atten_mask, query_segment_pos, key_segment_pos
            )
            return found
        query = self._project_heads("query", query_vec, query_segment_pos, turned=True)
        key, value = (
            self._project_heads("key", key_vec, key_segment_pos, turned=True),
            self._project_heads("value", value_vec, None),
        )
        encoded = self._attend(who, self._scale_query(query), key, value, None)
        return checkpoint_name(self._shard_bld(self.post(encoded)), "out_proj"), None

    def _project_heads(self, name: str, x: Any, positions: Any, *, turned: bool = False) -> Any:
        """Project [batch, length, features] into heads, laid over the mesh: [batch, length, heads,
        depth], turned by position where asked to.
        """
        # No device may hold a part of the features only, or the sum for the kernel's gradient goes
        # over devices once more.
        x = base_layer.maybe_shard(
            x, [None] * x.ndim, self.mesh_axis_names, unconstrained_dims=range(x.ndim - 1)
        )
        made = checkpoint_name(getattr(self, name)(x), f"{name}_proj")
        if made.ndim == x.ndim:  # a single head has no dimension of its own
            made = made[..., None, :]
        if turned and self.use_rotary_position_emb:
            made = self.rotary_position_emb(made, positions)
        return self._shard_blnh(made) if name == "query" else self._shard_kv_heads(made)

    def _choose_call_kernel(self, queries: int, keys: int) -> str:
        if self.is_mutable_collection(base_layer.DECODE_CACHE):
            return "xla"
        return self._choose_kernel(
            queries,
            keys,
            self.fprop_dtype,
            None,
            "relative positions with shared keys" if self.relative_bias_tpl is not None else "",
        )

    def _shard_kv_heads(self, x: Any) -> Any:
        """Lay keys or values [batch, length, heads, depth] over the mesh; a single head is no axis
        to split.
        """
        return (
            self._shard_blnh(x)
            if self.num_kv_heads > 1
            else self._shard_blh(x[..., 0, :])[..., None, :]
        )
