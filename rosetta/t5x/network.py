"""T5 as an encoder and decoder, and as a decoder alone; the parameters' tree and the methods are
those of upstream's networks.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint

from rosetta.nn import logits
from rosetta.nn.attention import Mask
from rosetta.nn.dense import Kernel
from rosetta.nn.embedding import Embedding
from rosetta.nn.relative_position import RelativeBias
from rosetta.nn.rms_norm import RMSNorm
from rosetta.t5x import layer_stack
from rosetta.t5x.layers import (
    DecoderLayer,
    EncoderLayer,
    make_attention_context,
    name_activation_axes,
)
from rosetta.t5x.run.model_config import T5Config

__all__ = ["DecoderOnly", "T5Config", "Transformer"]


def _embed_tokens(
    config: T5Config, table: nn.Module, tokens: Any, *, deterministic: bool, transposed: bool
) -> Any:
    """Return the stack's input for tokens [batch, length]."""
    x = table(tokens.T if transposed else tokens)
    x = with_sharding_constraint(x, (*name_activation_axes(transposed=transposed), "embed"))
    return nn.Dropout(config.dropout_rate, broadcast_dims=(0 if transposed else 1,))(
        x, deterministic=deterministic
    ).astype(config.dtype)


def _compute_logits(config: T5Config, hidden: Any, kernel: Any) -> Any:
    """Return float32 logits [batch, length, vocabulary] of hidden [batch, length, features]; the
    kernel is [features, vocabulary] in float32.
    """
    return logits.compute_logits(hidden, kernel, config.logits_dtype) * compute_logits_scale(config)


def compute_logits_scale(config: T5Config) -> float:
    """Return what the products of hidden vectors and kernel are multiplied with: an embedding's
    rows are long where it doubles as the kernel.
    """
    return config.emb_dim**-0.5 if config.logits_via_embedding else 1.0


class Encoder(nn.Module):
    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(self, tokens: Any, mask: Mask, *, deterministic: bool) -> Any:
        """Return [batch, length, features] for int32 tokens [batch, length]."""
        config, transposed, length = (
            self.config,
            self.config.transpose_batch_sequence,
            tokens.shape[1],
        )
        relative = RelativeBias(config.num_heads, config.dtype, name="relpos_bias")(
            length, length, bidirectional=True
        )
        seen = make_attention_context(
            config, mask, relative, length, length, deterministic=deterministic
        )
        x = _embed_tokens(
            config, self.token_embedder, tokens, deterministic=deterministic, transposed=transposed
        )
        x = layer_stack.apply_layers(
            self,
            EncoderLayer,
            config,
            config.num_encoder_layers,
            x,
            seen,
            deterministic=deterministic,
            transposed=transposed,
        )
        x = RMSNorm(config.dtype, name="encoder_norm")(x)
        x = nn.Dropout(rate=config.dropout_rate)(x, deterministic=deterministic)
        return jnp.swapaxes(x, 0, 1) if transposed else x


def _run_decoder(
    module: nn.Module,
    config: T5Config,
    table: Any,
    tokens: Any,
    mask: Mask,
    encoded: Any = None,
    encoder_mask: Mask | None = None,
    *,
    deterministic: bool,
    decode: bool,
    max_decode_length: int | None,
    prefill_lengths: Any = None,
    hidden_only: bool = False,
) -> Any:
    """Return the body of both decoders, whose parameters are the module's.

    tokens: int32 [batch, length]; encoded: [batch, length of the input, features]; encoder_mask: of
    decoder to encoder. Returns float32 logits [batch, length, vocabulary], or with `hidden_only`
    what they are made from: hidden [batch, length, features], kernel.
    """
    cached, length = decode or prefill_lengths is not None, tokens.shape[1]
    transposed = config.transpose_batch_sequence and not cached
    span = max_decode_length if decode and max_decode_length else length
    relative = RelativeBias(config.num_heads, config.dtype, name="relpos_bias")(
        span, span, bidirectional=False
    )
    others: list[Any] = [
        make_attention_context(
            config, mask, relative, length, length, deterministic=deterministic, incremental=cached
        )
    ]
    if encoder_mask is not None:
        cross = make_attention_context(
            config,
            encoder_mask,
            None,
            length,
            encoded.shape[1],
            deterministic=deterministic,
            incremental=cached,
        )
        others += [jnp.swapaxes(encoded, 0, 1) if transposed else encoded, cross]
    elif prefill_lengths is not None:
        others += [None, None, prefill_lengths]
    y = _embed_tokens(config, table, tokens, deterministic=deterministic, transposed=transposed)
    how = {"deterministic": deterministic, "transposed": transposed, "decode": decode}
    y = layer_stack.apply_layers(
        module, DecoderLayer, config, config.num_decoder_layers, y, *others, cached=cached, **how
    )
    y = RMSNorm(config.dtype, name="decoder_norm")(y)
    y = nn.Dropout(config.dropout_rate, broadcast_dims=(0 if transposed else 1,))(
        y, deterministic=deterministic
    )
    y = jnp.swapaxes(y, 0, 1) if transposed else y
    if config.logits_via_embedding:
        kernel = table.table().T
    else:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        kernel = Kernel(
            config.emb_dim, config.vocab_size, ("embed", "vocab"), init, name="logits_dense"
        )().kernel
    return (y, kernel) if hidden_only else _compute_logits(config, y, kernel)


class Decoder(nn.Module):
    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(
        self, tokens: Any, mask: Mask, encoded: Any, encoder_mask: Mask, **how: Any
    ) -> Any:
        """See _run_decoder."""
        return _run_decoder(
            self, self.config, self.token_embedder, tokens, mask, encoded, encoder_mask, **how
        )


class Transformer(nn.Module):
    """Encoder and decoder.

    Tokens are int32 [batch, length], 0 is padding; logits are float32 [batch, length, vocabulary].
    """

    config: T5Config

    def setup(self) -> None:
        config = self.config
        self.token_embedder = Embedding(config.vocab_size, config.emb_dim, config.dtype)
        self.encoder = Encoder(config, self.token_embedder)
        self.decoder = Decoder(config, self.token_embedder)

    def encode(
        self,
        encoder_input_tokens: Any,
        encoder_segment_ids: Any = None,
        enable_dropout: bool = True,
    ) -> Any:
        """Return the encoder's output, [batch, length, features]."""
        real = encoder_input_tokens > 0
        mask = Mask(
            valid_queries=real,
            valid_keys=real,
            query_segments=encoder_segment_ids,
            key_segments=encoder_segment_ids,
        )
        return self.encoder(encoder_input_tokens, mask, deterministic=not enable_dropout)

    def decode(
        self,
        encoded: Any,
        encoder_input_tokens: Any,
        decoder_input_tokens: Any,
        decoder_target_tokens: Any,
        encoder_segment_ids: Any = None,
        decoder_segment_ids: Any = None,
        decoder_positions: Any = None,
        enable_dropout: bool = True,
        decode: bool = False,
        max_decode_length: int | None = None,
        hidden_only: bool = False,
    ) -> Any:
        """Return logits of the decoder over `encoded`; with `decode`, of one token at a time with a
        cache.

        Positions are counted from the start of a row also in packed ones, since only distances
        matter, and are therefore not read.
        """
        del decoder_positions
        real_inputs = encoder_input_tokens > 0
        if decode:
            if encoder_segment_ids is not None:
                raise ValueError("packed examples cannot be decoded: give one example a row")
            mask, encoder_mask = Mask(causal=True), Mask(valid_keys=real_inputs)
        else:
            real = decoder_target_tokens > 0
            mask = Mask(
                valid_queries=real,
                valid_keys=real,
                causal=True,
                query_segments=decoder_segment_ids,
                key_segments=decoder_segment_ids,
            )
            packed = encoder_segment_ids is not None
            encoder_mask = Mask(
                valid_queries=real,
                valid_keys=real_inputs,
                query_segments=decoder_segment_ids if packed else None,
                key_segments=encoder_segment_ids,
            )
        return self.decoder(
            decoder_input_tokens,
            mask,
            encoded,
            encoder_mask,
            deterministic=not enable_dropout,
            decode=decode,
            max_decode_length=max_decode_length,
            hidden_only=hidden_only,
        )

    def __call__(
        self,
        encoder_input_tokens: Any,
        decoder_input_tokens: Any,
        decoder_target_tokens: Any,
        encoder_segment_ids: Any = None,
        decoder_segment_ids: Any = None,
        encoder_positions: Any = None,
        decoder_positions: Any = None,
        *,
        enable_dropout: bool = True,
        decode: bool = False,
        hidden_only: bool = False,
    ) -> Any:
        """Return logits for decoder inputs, which are the targets moved right by one."""
        del encoder_positions
        encoded = self.encode(encoder_input_tokens, encoder_segment_ids, enable_dropout)
        return self.decode(
            encoded,
            encoder_input_tokens,
            decoder_input_tokens,
            decoder_target_tokens,
            encoder_segment_ids,
            decoder_segment_ids,
            decoder_positions,
            enable_dropout=enable_dropout,
            decode=decode,
            hidden_only=hidden_only,
        )


class LanguageModel(nn.Module):
    """A decoder without an encoder, with an embedding of its own."""

    config: T5Config

    @nn.compact
    def __call__(
        self,
        decoder_input_tokens: Any,
        decoder_target_tokens: Any,
        decoder_segment_ids: Any = None,
        decoder_positions: Any = None,
        decoder_causal_attention: Any = None,
        *,
        enable_dropout: bool = True,
        decode: bool = False,
        max_decode_length: int | None = None,
        prefill: bool = False,
        prefill_lengths: Any = None,
        hidden_only: bool = False,
    ) -> Any:
        """Return logits for inputs, which are the targets moved right by one; see Decoder.

        decoder_causal_attention: int [batch, length], 1 for a prefix that sees itself in both
        directions. With `prefill`, a prompt of prefill_lengths int32 [batch] tokens goes into the
        cache; with `decode`, one token after it.
        """
        del decoder_positions  # only distances matter
        config, deterministic = self.config, not enable_dropout
        table = Embedding(config.vocab_size, config.emb_dim, config.dtype, name="token_embedder")
        if decode:
            mask = Mask(causal=True)
        else:
            real = decoder_target_tokens > 0
            visible = None
            if decoder_causal_attention is not None:
                prefix = decoder_causal_attention > 0
                ahead = jnp.tril(jnp.ones((decoder_input_tokens.shape[1],) * 2, bool))
                visible = ahead[None, None] | (prefix[:, None, :, None] & prefix[:, None, None, :])
            mask = Mask(
                valid_queries=real,
                valid_keys=real,
                causal=visible is None,
                visible=visible,
                query_segments=decoder_segment_ids,
                key_segments=decoder_segment_ids,
            )
        return _run_decoder(
            self,
            config,
            table,
            decoder_input_tokens,
            mask,
            deterministic=deterministic,
            decode=decode,
            max_decode_length=max_decode_length,
            prefill_lengths=prefill_lengths if prefill else None,
            hidden_only=hidden_only,
        )


class DecoderOnly(nn.Module):
    """A language model.

    Tokens are int32 [batch, length], 0 is padding; logits are float32 [batch, length, vocabulary].
    """

    config: T5Config

    def setup(self) -> None:
        self.decoder = LanguageModel(self.config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See LanguageModel."""
        return self.decoder(*args, **kwargs)
