"""The networks: encoder and decoder, a decoder alone, and an encoder alone (T5's, or a BERT).

The tree of parameters and the methods are those of T5X's own networks. The gin files name
Transformer, DecoderOnly and EncoderOnly.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes, with_sharding_constraint

from rosetta.core.errors import TOO_BIG, UserError
from rosetta.nn import logits, sharded_parameters
from rosetta.nn.attention import Mask
from rosetta.nn.dense import Kernel, apply_projections
from rosetta.nn.embedding import Embedding
from rosetta.nn.rms_norm import RMSNorm
from rosetta.t5x import layer_stack
from rosetta.t5x.layers import (
    AttentionContext,
    DecoderLayer,
    EncoderLayer,
    activate,
    make_attention_context,
    make_norm,
    make_relative_bias,
    name_activation_axes,
)
from rosetta.t5x.run.model_config import T5Config

__all__ = ["DecoderOnly", "EncoderOnly", "T5Config", "Transformer"]

_BERT_STDDEV = 0.02  # of BERT's embeddings


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
    BERT's embedding has small initial values, and needs no factor.
    """
    is_scaled = config.logits_via_embedding and config.norm == "rms"
    return config.emb_dim**-0.5 if is_scaled else 1.0


def _make_embedding(config: T5Config) -> Embedding:
    """Return the embedding of the tokens, as a module of the caller."""
    stddev = 1.0 if config.norm == "rms" else _BERT_STDDEV
    return Embedding(config.vocab_size, config.emb_dim, config.dtype, stddev)


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
    if config.relative_bias == "layer" and config.positions == "relative":
        layer_bias_length = bias_length
    elif config.positions == "relative":
        relative = make_relative_bias(config, bias_length, bidirectional=bidirectional)
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
    """The encoder. Its positions are relative, in both directions, unless the config says else."""

    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(
        self, tokens: Any, mask: Mask, token_types: Any = None, *, deterministic: bool
    ) -> Any:
        """Return [batch, length, features] for int32 tokens, and types of tokens, [batch, length].

        Types are read if the config has them.
        """
        config = self.config
        transposed = config.transpose_batch_sequence
        length = tokens.shape[1]
        context = _make_self_attention_context(config, mask, length, length, bidirectional=True)

        def embed(inputs: Any) -> Any:
            types = None if token_types is None else jnp.asarray(token_types)
            return self._add_embeddings(
                self.token_embedder(inputs), types.T if transposed and types is not None else types
            )

        x = _embed_tokens(config, embed, tokens, deterministic=deterministic, transposed=transposed)
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
        if config.norm_order == "pre":
            x = make_norm(config, "encoder_norm")(x)
            x = nn.Dropout(rate=config.dropout_rate)(x, deterministic=deterministic)
        return jnp.swapaxes(x, 0, 1) if transposed else x

    def _add_embeddings(self, x: Any, types: Any) -> Any:
        """Add the vectors of positions and of types to those of tokens, as the config says.

        Args:
          x: the vectors of the tokens, in the layout of the activations.
          types: int32 in the same layout, or None.
        """
        config = self.config
        if config.positions == "absolute":
            length = x.shape[0 if config.transpose_batch_sequence else 1]
            table = Embedding(
                config.max_positions,
                config.emb_dim,
                config.dtype,
                _BERT_STDDEV,
                ("abspos_buckets", "embed"),
                name="position_embedder",
            )
            if length > config.max_positions:
                raise UserError(
                    f"a row has {length} tokens, and the network has {config.max_positions} "
                    "positions",
                    "ENC_SL",
                    "shorten the rows, or set network.T5Config.max_positions",
                    kind=TOO_BIG,
                    value=length,
                )
            positions = table(jnp.arange(length))
            x = x + (positions[:, None] if config.transpose_batch_sequence else positions[None])
        if config.token_types:
            embedder = Embedding(
                config.token_types,
                config.emb_dim,
                config.dtype,
                _BERT_STDDEV,
                ("abspos_buckets", "embed"),
                name="type_embedder",
            )
            x = x + embedder(jnp.zeros(x.shape[:2], jnp.int32) if types is None else types)
        return make_norm(config, "embedding_norm")(x) if config.norm == "layer" else x


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
        config.check_has_decoder()
        self.token_embedder = _make_embedding(config)
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
        self.config.check_has_decoder()
        self.decoder = LanguageModel(self.config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the logits; the arguments are those of LanguageModel."""
        return self.decoder(*args, **kwargs)


class MaskedHead(nn.Module):
    """Predict the tokens from the hidden vectors: a dense layer, a norm, and the embedding.

    Attributes:
      config: the network's configuration.
      token_embedder: the embedding of the tokens, whose table is the kernel of the logits.
    """

    config: T5Config
    token_embedder: nn.Module

    @nn.compact
    def __call__(self, hidden: Any) -> Any:
        """Return float32 logits [..., vocabulary] of hidden vectors [..., features]."""
        config = self.config
        transformed = activate(
            config.mlp_activations[0], _apply_dense(config, "dense", hidden, config.emb_dim)
        )
        transformed = make_norm(config, "norm")(transformed)
        table: Any = self.token_embedder
        bias = param_with_axes(
            "logits_bias", nn.initializers.zeros, (config.vocab_size,), jnp.float32, axes=("vocab",)
        )
        return _compute_logits(config, transformed, table.table().T) + bias


def _apply_dense(config: T5Config, name: str, x: Any, outputs: int) -> Any:
    """Apply a dense layer of a head, a module of the caller with a kernel and a bias."""
    init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    kernel = Kernel(
        x.shape[-1], outputs, ("embed", "abspos_buckets"), init, has_bias=True, name=name
    )
    return apply_projections(x, [kernel()], config.dtype)[0]


class RowHead(nn.Module):
    """Predict something of a whole row from the hidden vector of its first token.

    Attributes:
      config: the network's configuration.
      outputs: the numbers to predict.
      output_name: the name of the last layer. That of pairs of texts is not the one of classes, so
        that finetuning begins with a new layer.
    """

    config: T5Config
    outputs: int
    output_name: str = "output"

    @nn.compact
    def __call__(self, hidden: Any, *, deterministic: bool) -> Any:
        """Return float32 [batch, outputs] for hidden vectors [batch, length, features]."""
        config = self.config
        pooled = jnp.tanh(_apply_dense(config, "pooler", hidden[:, 0], config.emb_dim))
        pooled = nn.Dropout(rate=config.dropout_rate)(pooled, deterministic=deterministic)
        outputs = _apply_dense(config, self.output_name, pooled, self.outputs)
        return outputs.astype(jnp.float32)


class EncoderOnly(nn.Module):
    """An encoder and its head: a BERT, or the encoder of a T5.

    Tokens are int32 [batch, length], where 0 is padding.
    """

    config: T5Config

    def setup(self) -> None:
        """Make the embedding, the encoder and the heads."""
        config = self.config
        self.token_embedder = _make_embedding(config)
        self.encoder = Encoder(config, self.token_embedder)
        if config.head == "mlm":
            self.masked_head = MaskedHead(config, self.token_embedder)
        if config.head == "mlm" and config.sentence_head:
            self.row_head = RowHead(config, 2, "sentence_output")
        if config.head in ("classification", "regression"):
            self.row_head = RowHead(config, max(config.classes, 1))

    def encode(self, tokens: Any, token_types: Any = None, enable_dropout: bool = True) -> Any:
        """Return the hidden vectors, [batch, length, features]."""
        not_padding = tokens > 0
        mask = Mask(valid_queries=not_padding, valid_keys=not_padding)
        return self.encoder(tokens, mask, token_types, deterministic=not enable_dropout)

    def __call__(
        self, tokens: Any, token_types: Any = None, *, enable_dropout: bool = True
    ) -> tuple[Any, Any]:
        """Return what the head predicts.

        Args:
          tokens: int32 [batch, length].
          token_types: the number of each token's text in its row, int32 [batch, length]; None for
            the first text.
          enable_dropout: whether dropout is on.

        Returns:
          Of tokens, float32 logits [batch, length, vocabulary]; None unless the head is "mlm". Of
          the row, float32 [batch, outputs]; None without such a head. Without any head, the hidden
          vectors and None.
        """
        hidden = self.encode(tokens, token_types, enable_dropout)
        if self.config.head == "none":
            return hidden, None
        logits = self.masked_head(hidden) if self.config.head == "mlm" else None
        has_row_head = self.config.head != "mlm" or self.config.sentence_head
        row = self.row_head(hidden, deterministic=not enable_dropout) if has_row_head else None
        return logits, row
