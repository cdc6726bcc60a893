"""T5's blocks: attention and MLP with their norms and residuals, in either layout, fused or not.

A block sees activations as [batch, length, features], or with `transposed` as [length, batch,
features]; masks and biases keep the batch first. What holds for a whole stack (the relative
positions' bias, masks, who computes attention) is worked out once and handed down.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint

from rosetta.nn import attention, dropout, kv_cache, transformer_engine
from rosetta.nn.dense import Kernel, apply_projections
from rosetta.nn.rms_norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.nn.attention import Mask
    from rosetta.t5x.run.model_config import T5Config


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["mask", "relative", "bias"],
    meta_fields=["implementation"],
)
@dataclass(frozen=True)
class AttentionContext:
    """What the queries of one kind of attention see, the same in all layers of a stack.

    Attributes:
      mask: who sees whom.
      relative: bias by relative position, [1, heads, queries, keys], or None.
      bias: mask and relative as one, where attention is computed by XLA.
      implementation: "xla", "cudnn" or "te".
    """

    mask: Mask
    relative: Any
    bias: Any
    implementation: str


def make_attention_context(
    config: T5Config,
    mask: Mask,
    relative: Any,
    queries: int,
    keys: int,
    *,
    deterministic: bool,
    incremental: bool = False,
) -> AttentionContext:
    """Choose the implementation for one kind of attention, and prepare its bias.

    While decoding with a cache it is always XLA.
    """
    asked = "xla" if incremental else config.attention
    dropping = not deterministic and config.dropout_rate > 0
    if asked == "te":
        implementation = transformer_engine.choose_implementation(
            dtype=config.dtype, mask=mask, dropout=dropping
        )
    else:
        unfit = attention.find_cudnn_problem(
            dtype=config.dtype,
            head_dim=config.head_dim,
            queries=queries,
            keys=keys,
            mask=mask,
            biased=relative is not None,
            dropout=dropping,
            float32_logits=config.float32_attention_logits,
        )
        implementation = attention.choose_implementation(asked, unfit)
    bias = (
        mask.make_bias(queries, keys, relative, config.dtype) if implementation == "xla" else None
    )
    return AttentionContext(mask, relative, bias, implementation)


def name_activation_axes(*, transposed: bool) -> tuple[str, str]:
    """Return the logical names of the first two dimensions of activations."""
    return ("length", "batch") if transposed else ("batch", "length")


def draw_dropout_masks(module: Any, x: Any, widths: Mapping[str, int]) -> Mapping[str, Any]:
    """Return what a module over activations x keeps under dropout: for each name bool [batch,
    width], None where all is kept.
    """
    if module.deterministic or module.config.dropout_rate == 0:
        return dict.fromkeys(widths)
    return dropout.draw_masks(
        module, module.config.dropout_rate, x.shape[1 if module.transposed else 0], widths
    )


def apply_dropout(config: T5Config, x: Any, kept: Any, *, transposed: bool) -> Any:
    """Return activations x after dropout, which drops the same features along the whole length, as
    T5 does; kept is bool [batch, features].
    """
    if kept is None:
        return x
    return dropout.apply_mask(x, kept[None] if transposed else kept[:, None], config.dropout_rate)


class Attention(nn.Module):
    """Multi-head attention with T5's parameters `query`, `key`, `value` and `out`; returns the
    shape of `queries`.
    """

    config: T5Config
    deterministic: bool
    transposed: bool = False
    decode: bool = False

    @nn.compact
    def __call__(
        self,
        queries: Any,
        memory: Any,
        seen: AttentionContext,
        kept: Any = None,
        prefill_lengths: Any = None,
    ) -> Any:
        query, key, value = self._projected(queries, memory)
        if self.decode or prefill_lengths is not None:
            key, value, relative, visible = kv_cache.update_cache(
                self, key, value, seen.relative, prefill_lengths=prefill_lengths
            )
            if visible is not None:
                seen = AttentionContext(
                    visible,
                    relative,
                    visible.make_bias(query.shape[1], key.shape[1], relative, self.config.dtype),
                    "xla",
                )
        if seen.implementation == "xla":
            attended = attention.compute_plain_attention(
                query,
                key,
                value,
                bias=seen.bias,
                float32_logits=self.config.float32_attention_logits,
                drop=functools.partial(self._drop, kept),
                transposed=self.transposed,
            )
        elif seen.implementation == "te":
            attended = transformer_engine.compute_attention(
                query,
                key,
                value,
                relative=seen.relative,
                mask=seen.mask,
                dropout_rate=self.config.dropout_rate,
                deterministic=self.deterministic,
                transposed=self.transposed,
            )
        else:
            query, key, value = (
                jnp.swapaxes(each, 0, 1) if self.transposed else each
                for each in (query, key, value)
            )
            attended = attention.compute_fused_attention(
                query,
                key,
                value,
                relative=seen.relative,
                mask=seen.mask,
                implementation=seen.implementation,
            )
            attended = jnp.swapaxes(attended, 0, 1) if self.transposed else attended
        width = self.config.num_heads * self.config.head_dim
        out = self._kernel("out", width, queries.shape[-1], ("joined_kv", "embed"))
        return apply_projections(
            attended.reshape(*attended.shape[:2], width), [out], self.config.dtype
        )[0]

    def _projected(self, queries: Any, memory: Any) -> tuple[Any, Any, Any]:
        """Return q, k and v, each [.., .., heads, head_dim] in the layout of the activations."""
        config = self.config
        width, depth = (
            config.num_heads * config.head_dim,
            jnp.sqrt(config.head_dim).astype(config.dtype),
        )
        init = _make_initializer("normal")
        parts = {
            name: self._kernel(
                name,
                (queries if name == "query" else memory).shape[-1],
                width,
                ("embed", "joined_kv"),
                made,
            )
            # T5 leaves attention's logits unscaled and starts with smaller queries instead.
            for name, made in (
                ("query", lambda *args: init(*args) / depth),
                ("key", init),
                ("value", init),
            )
        }
        if config.fuse_qkv and memory is queries:
            query, key, value = apply_projections(queries, list(parts.values()), config.dtype)
        elif config.fuse_qkv:
            (query,), (key, value) = (
                apply_projections(queries, [parts["query"]], config.dtype),
                apply_projections(memory, [parts["key"], parts["value"]], config.dtype),
            )
        else:
            query, key, value = (
                apply_projections(queries if name == "query" else memory, [part], config.dtype)[0]
                for name, part in parts.items()
            )
        if config.scale_attn_logits:
            query = query / depth
        names = (*name_activation_axes(transposed=self.transposed), "heads", "kv")
        shaped = (
            each.reshape(*each.shape[:2], config.num_heads, config.head_dim)
            for each in (query, key, value)
        )
        query, key, value = (with_sharding_constraint(each, names) for each in shaped)
        return query, key, value

    def _kernel(
        self, name: str, inputs: int, outputs: int, names: tuple[str, str], init: Any = None
    ) -> Any:
        return Kernel(
            inputs,
            outputs,
            names,
            init or _make_initializer("normal"),
            fp8=self.config.fp8,
            name=name,
        )()

    def _drop(self, kept: Any, weights: Any) -> Any:
        """Drop attention weights [batch, heads, queries, keys]: the same keys for all queries, as
        T5 does.
        """
        if kept is None:
            return weights
        return dropout.apply_mask(
            weights, kept.reshape(*weights.shape[:2], 1, weights.shape[3]), self.config.dropout_rate
        )


class Mlp(nn.Module):
    """The feed-forward block with T5's parameters `wi`, or `wi_0` and `wi_1` where it is gated, and
    `wo`.
    """

    config: T5Config
    deterministic: bool
    transposed: bool = False

    @nn.compact
    def __call__(self, x: Any, kept: Any = None) -> Any:
        config = self.config
        names = (
            ["wi"]
            if len(config.mlp_activations) == 1
            else [f"wi_{index}" for index in range(len(config.mlp_activations))]
        )
        parts = [
            self._kernel(name, x.shape[-1], config.mlp_dim, ("embed", "mlp")) for name in names
        ]
        inner = (
            apply_projections(x, parts, config.dtype)
            if config.fuse_qkv
            else tuple(apply_projections(x, [part], config.dtype)[0] for part in parts)
        )
        activated = (
            each if name == "linear" else getattr(nn, name)(each)
            for name, each in zip(config.mlp_activations, inner, strict=True)
        )
        hidden = functools.reduce(operator.mul, activated)
        hidden = apply_dropout(config, hidden, kept, transposed=self.transposed)
        hidden = with_sharding_constraint(
            hidden, (*name_activation_axes(transposed=self.transposed), "mlp")
        )
        return apply_projections(
            hidden,
            [self._kernel("wo", config.mlp_dim, x.shape[-1], ("mlp", "embed"))],
            config.dtype,
        )[0]

    def _kernel(self, name: str, inputs: int, outputs: int, names: tuple[str, str]) -> Any:
        return Kernel(
            inputs,
            outputs,
            names,
            _make_initializer("truncated_normal"),
            fp8=self.config.fp8,
            name=name,
        )()


def _make_initializer(distribution: str) -> Any:
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution)


class EncoderLayer(nn.Module):
    """Attention within the input, then the MLP; [.., .., features] to the same."""

    config: T5Config
    deterministic: bool
    transposed: bool

    @nn.compact
    def __call__(self, inputs: Any, seen: AttentionContext) -> Any:
        config, how = (
            self.config,
            {"deterministic": self.deterministic, "transposed": self.transposed},
        )
        length = inputs.shape[0 if self.transposed else 1]
        kept = draw_dropout_masks(
            self,
            inputs,
            {
                "attention": config.emb_dim,
                "weights": config.num_heads * length,
                "hidden": config.mlp_dim,
                "mlp": config.emb_dim,
            },
        )
        x = RMSNorm(config.dtype, name="pre_attention_layer_norm")(inputs)
        x = Attention(config, **how, name="attention")(x, x, seen, kept["weights"])
        x = apply_dropout(config, x, kept["attention"], transposed=self.transposed) + inputs
        y = RMSNorm(config.dtype, name="pre_mlp_layer_norm")(x)
        y = Mlp(config, **how, name="mlp")(y, kept["hidden"])
        return apply_dropout(config, y, kept["mlp"], transposed=self.transposed) + x


class DecoderLayer(nn.Module):
    """Attention within the output, to the encoder where there is one, then the MLP; [.., ..,
    features] to the same.
    """

    config: T5Config
    deterministic: bool
    transposed: bool
    decode: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: Any,
        seen: AttentionContext,
        encoded: Any = None,
        encoder_seen: AttentionContext | None = None,
        prefill_lengths: Any = None,
    ) -> Any:
        config, how = (
            self.config,
            {"deterministic": self.deterministic, "transposed": self.transposed},
        )
        along = 0 if self.transposed else 1
        widths = {
            "attention": config.emb_dim,
            "weights": config.num_heads * inputs.shape[along],
            "hidden": config.mlp_dim,
            "mlp": config.emb_dim,
        }
        if encoder_seen is not None:
            widths |= {
                "cross": config.emb_dim,
                "cross_weights": config.num_heads * encoded.shape[along],
            }
        kept = draw_dropout_masks(self, inputs, widths)
        x = RMSNorm(config.dtype, name="pre_self_attention_layer_norm")(inputs)
        x = Attention(config, **how, decode=self.decode, name="self_attention")(
            x, x, seen, kept["weights"], prefill_lengths
        )
        x = apply_dropout(config, x, kept["attention"], transposed=self.transposed) + inputs
        if encoder_seen is not None:
            y = RMSNorm(config.dtype, name="pre_cross_attention_layer_norm")(x)
            y = Attention(config, **how, name="encoder_decoder_attention")(
                y, encoded, encoder_seen, kept["cross_weights"]
            )
            x = apply_dropout(config, y, kept["cross"], transposed=self.transposed) + x
        z = RMSNorm(config.dtype, name="pre_mlp_layer_norm")(x)
        z = Mlp(config, **how, name="mlp")(z, kept["hidden"])
        return apply_dropout(config, z, kept["mlp"], transposed=self.transposed) + x
