"""The T5 networks: encoder and decoder, and a decoder alone.

The tree of parameters and the methods are those of T5X's own networks. The gin files name
Transformer and DecoderOnly.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint

from rosetta.nn import logits, sharded_parameters
from rosetta.nn.attention import Mask
from rosetta.nn.dense import Kernel
from rosetta.nn.embedding import Embedding
from rosetta.nn.relative_position import RelativeBias
from rosetta.nn.rms_norm import RMSNorm
from rosetta.t5x import layer_stack
from rosetta.t5x.layers import (
    AttentionContext,
    DecoderLayer,
    EncoderLayer,
    make_attention_context,
    name_activation_axes,
)
from rosetta.t5x.run.model_config import T5Config

__all__ = ["DecoderOnly", "T5Config", "Transformer"]


def _embed_tokens(
    config: T5Config, embedding: nn.Module, tokens: Any, *, deterministic: bool, transposed: bool
) -> Any:
    """Return the input of a stack of layers for tokens [batch, length].

    It is [batch, length, features], or [length, batch, features] if `transposed`.
    """
    x = embedding(tokens.T if transposed else tokens)
    x = with_sharding_constraint(x, (*name_activation_axes(transposed=transposed), "embed"))
    x = nn.Dropout(config.dropout_rate, broadcast_dims=_list_broadcast_dims(transposed=transposed))(
        x, deterministic=deterministic
    )
    return x.astype(config.dtype)


def _list_broadcast_dims(*, transposed: bool) -> tuple[int, ...]:
    """Return the dimensions along which dropout drops the same features: the length, as in T5."""
    return (0,) if transposed else (1,)


def _compute_logits(config: T5Config, hidden: Any, kernel: Any) -> Any:
    """Return float32 logits [batch, length, vocabulary] of the hidden vectors [batch, length,
    features], for a float32 kernel [features, vocabulary].
    """
    return logits.compute_logits(hidden, kernel, config.logits_dtype) * compute_logits_scale(config)


def compute_logits_scale(config: T5Config) -> float:
    """Return the factor by which the product of hidden vectors and kernel is multiplied.

    It is 1, or 1 / sqrt(emb_dim) if the embedding is the kernel. T5 initialises the embedding with
    variance 1, and a kernel of its own with variance 1 / emb_dim; the factor makes up for that.
    """
    return config.emb_dim**-0.5 if config.logits_via_embedding else 1.0


def _make_self_attention_context(
    config: T5Config,
    mask: Mask,
    length: int,
    bias_length: int,
    *,
    bidirectional: bool,
    incremental: bool = False,
) -> AttentionContext:
    """Return the context of a stack's self-attention, with the stack's bias if it has one.

    The parameter of the bias belongs to the module that calls the function, as `relpos_bias`.

    Args:
      config: the network's configuration.
      mask: which keys each query may attend to.
      length: the number of queries, and of keys.
      bias_length: the queries, and keys, of the bias by relative position.
      bidirectional: whether the bias distinguishes the keys after the query.
      incremental: whether a cache of keys and values is used.
    """
    relative = None
    layer_bias_length = None
    if config.relative_bias == "layer":
        layer_bias_length = bias_length
    else:
        relative = RelativeBias(config.num_heads, config.dtype, name="relpos_bias")(
            bias_length, bias_length, bidirectional=bidirectional
        )
    return make_attention_context(
        config,
        mask,
        relative,
        length,
        length,
        incremental=incremental,
        layer_bias_length=layer_bias_length,
    )


class Encoder(nn.Module):
    """The encoder, with relative positions in both directions."""

    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(self, tokens: Any, mask: Mask, *, deterministic: bool) -> Any:
        """Return [batch, length, features] for int32 tokens [batch, length]."""
        config = self.config
        transposed = config.transpose_batch_sequence
        length = tokens.shape[1]
        context = _make_self_attention_context(config, mask, length, length, bidirectional=True)
        x = _embed_tokens(
            config, self.token_embedder, tokens, deterministic=deterministic, transposed=transposed
        )
        x = layer_stack.apply_layers(
            self,
            EncoderLayer,
            config,
            config.num_encoder_layers,
            x,
            context,
            deterministic=deterministic,
            transposed=transposed,
        )
        x = RMSNorm(config.dtype, name="encoder_norm")(x)
        x = nn.Dropout(rate=config.dropout_rate)(x, deterministic=deterministic)
        return jnp.swapaxes(x, 0, 1) if transposed else x


def _run_decoder(
    module: nn.Module,
    config: T5Config,
    embedding: Any,
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
    """Run a decoder, whose parameters belong to `module`.

    Args:
      module: the decoder.
      config: the network's configuration.
      embedding: the Embedding of the tokens, and of the logits with config.logits_via_embedding.
      tokens: int32 [batch, length].
      mask: the mask of the self-attention.
      encoded: the encoder's output, [batch, length of the input, features], or None.
      encoder_mask: the mask of the attention to the encoder, or None.
      deterministic: whether dropout is off.
      decode: whether one token is generated, with a cache.
      max_decode_length: the length of the cache; None for the length of the tokens.
      prefill_lengths: int32 [batch], the lengths of the prompts if the call writes prompts into
        the cache; else None.
      hidden_only: whether to leave out the last product, and return its two factors.

    Returns:
      Float32 logits [batch, length, vocabulary]. With `hidden_only`, the hidden vectors [batch,
      length, features] and the kernel [features, vocabulary].
    """
    uses_cache = decode or prefill_lengths is not None
    length = tokens.shape[1]
    transposed = config.transpose_batch_sequence and not uses_cache
    # In decoding, the keys are the tokens in the cache, not those of this call.
    bias_length = max_decode_length if decode and max_decode_length else length
    # The arguments of DecoderLayer after its activations, in their order.
    layer_inputs: list[Any] = [
        _make_self_attention_context(
            config,
            mask,
            length,
            bias_length,
            bidirectional=False,
            incremental=uses_cache,
        )
    ]
    if encoder_mask is not None:
        encoder_context = make_attention_context(
            config,
            encoder_mask,
            None,
            length,
            encoded.shape[1],
            incremental=uses_cache,
        )
        layer_inputs += [jnp.swapaxes(encoded, 0, 1) if transposed else encoded, encoder_context]
    elif prefill_lengths is not None:
        layer_inputs += [None, None, prefill_lengths]
    y = _embed_tokens(config, embedding, tokens, deterministic=deterministic, transposed=transposed)
    options = {"deterministic": deterministic, "transposed": transposed, "decode": decode}
    y = layer_stack.apply_layers(
        module,
        DecoderLayer,
        config,
        config.num_decoder_layers,
        y,
        *layer_inputs,
        cached=uses_cache,
        **options,
    )
    y = RMSNorm(config.dtype, name="decoder_norm")(y)
    y = nn.Dropout(config.dropout_rate, broadcast_dims=_list_broadcast_dims(transposed=transposed))(
        y, deterministic=deterministic
    )
    y = jnp.swapaxes(y, 0, 1) if transposed else y
    if config.logits_via_embedding:
        kernel = embedding.table().T
    else:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        logits_dense = Kernel(
            config.emb_dim, config.vocab_size, ("embed", "vocab"), init, name="logits_dense"
        )()
        kernel = sharded_parameters.cast_parameter(
            logits_dense.kernel, logits_dense.axes, logits_dense.kernel.dtype
        )
    return (y, kernel) if hidden_only else _compute_logits(config, y, kernel)


class Decoder(nn.Module):
    """The decoder of an encoder-decoder network."""

    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(
        self, tokens: Any, mask: Mask, encoded: Any, encoder_mask: Mask, **options: Any
    ) -> Any:
        """Return the logits of the tokens; see _run_decoder for the arguments."""
        return _run_decoder(
            self, self.config, self.token_embedder, tokens, mask, encoded, encoder_mask, **options
        )


class Transformer(nn.Module):
    """The encoder-decoder network.

    Tokens are int32 [batch, length], where 0 is padding. Logits are float32 [batch, length,
    vocabulary].
    """

    config: T5Config

    def setup(self) -> None:
        """Make the encoder, the decoder, and the embedding that both share."""
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
        not_padding = encoder_input_tokens > 0
        mask = Mask(
            valid_queries=not_padding,
            valid_keys=not_padding,
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
        """Return the decoder's logits.

        Args:
          encoded: the encoder's output, [batch, length of the input, features].
          encoder_input_tokens: int32 [batch, length of the input].
          decoder_input_tokens: int32 [batch, length]; the length is 1 with `decode`.
          decoder_target_tokens: int32 [batch, length].
          encoder_segment_ids: the number of the example that each input token of a packed row
            belongs to; None if rows are not packed.
          decoder_segment_ids: the same for the decoder's tokens.
          decoder_positions: not used: attention uses only the distances between tokens, in packed
            rows too.
          enable_dropout: whether dropout is on.
          decode: whether one token is generated, with a cache.
          max_decode_length: the length of the cache; None for the length of the tokens.
          hidden_only: whether to return hidden vectors and kernel, see _run_decoder.
        """
        del decoder_positions
        input_not_padding = encoder_input_tokens > 0
        if decode:
            if encoder_segment_ids is not None or decoder_segment_ids is not None:
                raise ValueError("packed examples cannot be decoded: give one example per row")
            mask, encoder_mask = Mask(causal=True), Mask(valid_keys=input_not_padding)
        else:
            if (encoder_segment_ids is None) != (decoder_segment_ids is None):
                raise ValueError(
                    "packed rows need encoder_segment_ids and decoder_segment_ids: give both"
                )
            not_padding = decoder_target_tokens > 0
            mask = Mask(
                valid_queries=not_padding,
                valid_keys=not_padding,
                causal=True,
                query_segments=decoder_segment_ids,
                key_segments=decoder_segment_ids,
            )
            encoder_mask = Mask(
                valid_queries=not_padding,
                valid_keys=input_not_padding,
                query_segments=decoder_segment_ids,
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
        """Return the logits for decoder inputs, which are the targets moved right by one token.

        The arguments are those of `decode`. Positions are not used.
        """
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
    """The decoder of DecoderOnly: an embedding and a stack of layers without an encoder.

    It is a module of its own because T5X's parameters of this network are below `decoder`.
    """

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
        """Return the logits for inputs, which are the targets moved right by one token.

        Args:
          decoder_input_tokens: int32 [batch, length]; the length is 1 with `decode`.
          decoder_target_tokens: int32 [batch, length].
          decoder_segment_ids: the number of the example that each token of a packed row belongs
            to; None if rows are not packed.
          decoder_positions: not used: attention uses only the distances between tokens.
          decoder_causal_attention: int [batch, length], 1 for the tokens of a prefix, which attend
            to each other in both directions.
          enable_dropout: whether dropout is on.
          decode: whether one token is generated, with a cache.
          max_decode_length: the length of the cache; None for the length of the tokens.
          prefill: whether the call writes a prompt for each row into the cache.
          prefill_lengths: the number of tokens of each prompt, int32 [batch].
          hidden_only: whether to return hidden vectors and kernel, see _run_decoder.
        """
        del decoder_positions
        config, deterministic = self.config, not enable_dropout
        embedding = Embedding(
            config.vocab_size, config.emb_dim, config.dtype, name="token_embedder"
        )
        if decode:
            mask = Mask(causal=True)
        else:
            not_padding = decoder_target_tokens > 0
            visible = None
            # Tokens of a prefix attend to the whole prefix, all others to the tokens before them.
            if decoder_causal_attention is not None:
                prefix = decoder_causal_attention > 0
                causal = jnp.tril(jnp.ones((decoder_input_tokens.shape[1],) * 2, bool))
                visible = causal[None, None] | (prefix[:, None, :, None] & prefix[:, None, None, :])
            mask = Mask(
                valid_queries=not_padding,
                valid_keys=not_padding,
                causal=visible is None,
                visible=visible,
                query_segments=decoder_segment_ids,
                key_segments=decoder_segment_ids,
            )
        return _run_decoder(
            self,
            config,
            embedding,
            decoder_input_tokens,
            mask,
            deterministic=deterministic,
            decode=decode,
            max_decode_length=max_decode_length,
            prefill_lengths=prefill_lengths if prefill else None,
            hidden_only=hidden_only,
        )


class DecoderOnly(nn.Module):
    """The decoder-only network.

    Tokens are int32 [batch, length], where 0 is padding. Logits are float32 [batch, length,
    vocabulary].
    """

    config: T5Config

    def setup(self) -> None:
        """Make the decoder, under the name that T5X's network has for it."""
        self.decoder = LanguageModel(self.config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the logits; the arguments are those of LanguageModel."""
        return self.decoder(*args, **kwargs)
