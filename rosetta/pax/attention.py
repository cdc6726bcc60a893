"""Self-attention of Praxis with its products computed by cuDNN or Transformer Engine.

rosetta.pax.switches puts these layers in the place of Praxis' own. Parameters, projections and
everything else stay those of the base classes. Attention is causal, and the padding of a row must
be at its end: then no token sees padding, and the result at padding is not used. If a fused kernel
cannot compute a call, the base class computes it and a warning gives the reason.
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
    """Attention by Transformer Engine, a Flax module without parameters, for use in a Praxis
    layer.
    """

    dropout_rate: float

    @nn.compact
    def __call__(self, query: Any, key: Any, value: Any, relative: Any) -> Any:
        """Return the attention of each query, in the shape of `query`."""
        return transformer_engine.compute_attention(
            query,
            key,
            value,
            relative=relative,
            mask=_CAUSAL,
            transposed=False,
            dropout_rate=self.dropout_rate,
        )


class _FusedAttention(base_layer.BaseLayer):
    """What both attention layers share.

    It comes after Praxis' class among the bases of a layer, because it uses the sharding fields of
    that class.

    Attributes:
      by: "cudnn" or "te" (Transformer Engine).
      packed: Whether rows hold several examples.
      implementation: The implementation of jax.nn.dot_product_attention for "cudnn".
    """

    by: str = "cudnn"
    packed: bool = False
    implementation: str = "cudnn"

    def _choose_kernel(
        self, queries: int, keys: int, dtype: Any, relative: Any, reason: str = ""
    ) -> str:
        """Return what computes a call, and warn if that is XLA.

        Args:
          queries: The number of queries in a row.
          keys: The number of keys in a row.
          dtype: The type of the queries.
          relative: The bias for relative positions, or None.
          reason: A reason against a fused kernel that the caller knows.

        Returns:
          "cudnn", "te" or "xla".
        """
        reason = reason or self._find_problem(relative)
        if self.by == "te":
            if not reason:
                return transformer_engine.choose_implementation(dtype=dtype, mask=_CAUSAL)
            fallback_notice.warn_once(f"attention by XLA {fallback_notice.INSTEAD_OF_TE}", reason)
            return "xla"
        if not reason:
            reason = attention.find_cudnn_problem(
                # XLA's implementation takes any type.
                dtype=jnp.bfloat16 if self.implementation == "xla" else dtype,
                mask=_CAUSAL,
                head_dim=self.dim_per_head or self.hidden_dim // self.num_heads,
                queries=queries,
                keys=keys,
                biased=relative is not None,
                dropout=self._read_dropout_rate() > 0,
                float32_logits=False,
            )
        return attention.choose_implementation("cudnn", reason)

    def _read_dropout_rate(self) -> float:
        """Return the probability with which this call drops an attention weight."""
        return 0.0 if self.do_eval else self.atten_dropout_prob

    def _find_problem(self, relative: Any) -> str:
        """Return why no fused kernel can compute this layer, "" if one can."""
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
        if relative is not None and relative.shape[0] != 1:
            return "a bias for each row"
        return ""

    def _attend(self, kernel: str, query: Any, key: Any, value: Any, relative: Any) -> Any:
        """Return the attention of each query, computed by a fused kernel.

        Args:
          kernel: "cudnn" or "te".
          query: Scaled queries [batch, length, heads, depth].
          key: Keys [batch, length, heads or a divisor, depth].
          value: Values, in the shape of the keys.
          relative: The bias for relative positions [1, heads, length, length], or None.
        """
        if kernel == "te":
            module = _TransformerEngine(self._read_dropout_rate(), parent=None)
            rngs = {"dropout": self.next_prng_key()} if module.dropout_rate else {}
            attended = module.apply({}, query, key, value, relative, rngs=rngs)
        else:
            attended = attention.compute_fused_attention(
                query,
                key,
                value,
                relative=relative,
                mask=_CAUSAL,
                implementation=self.implementation,
            )
        return self._shard_blnh(checkpoint_name(attended, "context"))


class DotProductAttention(attentions.DotProductAttention, _FusedAttention):
    """Praxis' DotProductAttention with a fused kernel."""

    def _dot_atten(
        self, query: Any, key: Any, value: Any, atten_mask: Any, relative_bias: Any = None
    ) -> tuple[Any, Any]:
        """Return the attention of each query, and its weights; None if a kernel keeps them."""
        kernel = self._choose_kernel(query.shape[1], key.shape[1], query.dtype, relative_bias)
        if kernel == "xla":
            result: tuple[Any, Any] = super()._dot_atten(
                query, key, value, atten_mask, relative_bias
            )
            return result
        query, key, value = map(self._shard_blnh, (query, key, value))
        query = self._scale_query(query)
        if self.scale_logits_by_head_dims:
            query *= query.shape[-1] ** -0.5
        return self._attend(kernel, query, key, value, relative_bias), None


class MultiQueryAttention(multi_query_attention.MultiQueryDotProductAttention, _FusedAttention):
    """Praxis' MultiQueryDotProductAttention with a fused kernel.

    There are fewer heads of keys and values than of queries. No key or value is repeated.
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
        """Return the result of the layer, and the weights of attention.

        The base class computes decoding with a cache.

        Args:
          query_vec: Inputs [batch, length, features] of the queries.
          key_vec: Inputs of the keys, in the same shape.
          value_vec: Inputs of the values, in the same shape.
          atten_mask: Added to the logits, [batch or 1, 1, length or 1, length].
          query_segment_pos: The position of each token in its example, [batch, length].
          key_segment_pos: The same for the keys.

        Returns:
          The result [batch, length, features], and the weights. The weights are None if a fused
          kernel keeps them.
        """
        kernel = self._choose_call_kernel(query_vec.shape[1], key_vec.shape[1])
        if kernel == "xla":
            result: tuple[Any, Any] = super().__call__(
                query_vec, key_vec, value_vec, atten_mask, query_segment_pos, key_segment_pos
            )
            return result
        query = self._project_heads("query", query_vec, query_segment_pos, rotate=True)
        key = self._project_heads("key", key_vec, key_segment_pos, rotate=True)
        value = self._project_heads("value", value_vec, None)
        encoded = self._attend(kernel, self._scale_query(query), key, value, None)
        return checkpoint_name(self._shard_bld(self.post(encoded)), "out_proj"), None

    def _project_heads(self, name: str, x: Any, positions: Any, *, rotate: bool = False) -> Any:
        """Project inputs into heads, laid over the mesh.

        Args:
          name: "query", "key" or "value", the projection.
          x: Inputs [batch, length, features].
          positions: The position of each token, [batch, length].
          rotate: Whether to apply rotary positions, if the layer has them.

        Returns:
          Heads [batch, length, heads, depth].
        """
        # No device may hold only a part of the features: otherwise the sum for the gradient of the
        # kernel goes over the devices once more.
        x = base_layer.maybe_shard(
            x, [None] * x.ndim, self.mesh_axis_names, unconstrained_dims=range(x.ndim - 1)
        )
        heads = checkpoint_name(getattr(self, name)(x), f"{name}_proj")
        if heads.ndim == x.ndim:  # a single head has no dimension of its own
            heads = heads[..., None, :]
        if rotate and self.use_rotary_position_emb:
            heads = self.rotary_position_emb(heads, positions)
        return self._shard_blnh(heads) if name == "query" else self._shard_kv_heads(heads)

    def _choose_call_kernel(self, queries: int, keys: int) -> str:
        """Return what computes a call of this layer: "cudnn", "te" or "xla"."""
        if self.is_mutable_collection(base_layer.DECODE_CACHE):
            return "xla"
        reason = ""
        if self.relative_bias_tpl is not None:
            reason = "relative positions with shared keys"
        return self._choose_kernel(queries, keys, self.fprop_dtype, None, reason)

    def _shard_kv_heads(self, x: Any) -> Any:
        """Lay keys or values [batch, length, heads, depth] over the mesh.

        A dimension of one head cannot be split.
        """
        if self.num_kv_heads > 1:
            return self._shard_blnh(x)
        return self._shard_blh(x[..., 0, :])[..., None, :]
