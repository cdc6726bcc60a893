"""The layers of T5: attention and MLP blocks with their norms and residuals (see network).

Activations are [batch, length, features], or [length, batch, features] if `transposed` is set.
Masks and biases always have the batch first. What all layers of a stack share (the masks, the
attention implementation, and for T5 the bias of relative positions) is computed once, in an
AttentionContext.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.partitioning import with_sharding_constraint

from rosetta.nn import (
    attention,
    block_sparse,
    current_mesh,
    dropout,
    fallback_notice,
    fp8,
    fp8_joined,
    fp8_mlp,
    kernel_placement,
    kv_cache,
    mlp_kernels,
    transformer_engine,
)
from rosetta.nn.dense import Kernel, apply_projections
from rosetta.nn.layer_norm import LayerNorm
from rosetta.nn.relative_position import RelativeBias
from rosetta.nn.rms_norm import RMSNorm
from rosetta.nn.rotary_positions import RotaryEmbedding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rosetta.nn.attention import Mask
    from rosetta.nn.kernel_placement import Placement
    from rosetta.t5x.run.model_config import T5Config


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["mask", "relative", "bias"],
    meta_fields=["implementation", "bias_length"],
)
@dataclass(frozen=True)
class AttentionContext:
    """What one kind of attention uses in every layer of a stack.

    Attributes:
      mask: which keys each query may attend to.
      relative: the bias by relative position, [1, heads, queries, keys], or that of one block of
        queries if attention is sparse; None if there is none, or if each layer adds its own.
      bias: the mask and `relative` as one bias if XLA computes the attention, else None.
      implementation: "xla", "cudnn", "te" or "sparse".
      bias_length: the queries, and keys, of the bias that each layer adds (see add_layer_bias);
        None if the layers have no bias of their own.
    """

    mask: Mask
    relative: Any
    bias: Any
    implementation: str
    bias_length: int | None = None


def make_attention_context(
    config: T5Config,
    mask: Mask,
    relative: Any,
    queries: int,
    keys: int,
    *,
    incremental: bool = False,
    layer_bias_length: int | None = None,
) -> AttentionContext:
    """Choose the implementation for one kind of attention, and prepare its bias.

    Args:
      config: the network's configuration.
      mask: which keys each query may attend to.
      relative: what make_relative_bias returned, or None.
      queries: the number of queries.
      keys: the number of keys.
      incremental: whether a cache of keys and values is used, as in decoding. XLA computes the
        attention then.
      layer_bias_length: the queries, and keys, of the bias by relative position that each layer
        adds; None if the layers have no bias of their own.
    """
    if config.sparse_attention is not None:
        return AttentionContext(mask, relative, None, "sparse", layer_bias_length)
    requested = "xla" if incremental else config.attention
    if requested == "te":
        implementation = transformer_engine.choose_implementation(dtype=config.dtype, mask=mask)
    else:
        cudnn_problem = attention.find_cudnn_problem(
            dtype=config.dtype,
            head_dim=config.head_dim,
            queries=queries,
            keys=keys,
            mask=mask,
            biased=relative is not None or layer_bias_length is not None,
            dropout=False,
            float32_logits=config.float32_attention_logits,
        )
        implementation = attention.choose_implementation(requested, cudnn_problem)
    bias = (
        mask.make_bias(queries, keys, relative, config.dtype) if implementation == "xla" else None
    )
    return AttentionContext(mask, relative, bias, implementation, layer_bias_length)


def add_layer_bias(
    config: T5Config, context: AttentionContext, *, bidirectional: bool
) -> AttentionContext:
    """Return the context of a layer's self-attention, with the layer's own bias if it has one.

    The parameter belongs to the layer that calls the function, as `relpos_bias`.

    Args:
      config: the network's configuration.
      context: the context of the stack.
      bidirectional: whether the bias distinguishes the keys after the query.
    """
    if context.bias_length is None:
        return context
    relative = make_relative_bias(config, context.bias_length, bidirectional=bidirectional)
    bias = context.bias
    if context.implementation == "xla":
        bias = relative if bias is None else bias + relative
    return dataclasses.replace(context, relative=relative, bias=bias)


def make_relative_bias(config: T5Config, length: int, *, bidirectional: bool) -> Any:
    """Return T5's bias by relative position, [1, heads, queries, keys].

    The queries and keys are those of a row or, if attention is sparse, those of
    block_sparse.find_relative_range. The parameter belongs to the module that calls the function,
    as `relpos_bias`.

    Args:
      config: the network's configuration.
      length: the number of queries, and of keys.
      bidirectional: whether the bias distinguishes the keys after the query.
    """
    bias = RelativeBias(config.num_heads, config.dtype, name="relpos_bias")
    sparse = config.sparse_attention
    if sparse is None:
        return bias(length, length, bidirectional=bidirectional)
    # A bias over all queries and keys would take the memory that sparse attention saves.
    keys, first_key = block_sparse.find_relative_range(length, sparse.block)
    return bias(sparse.block, keys, bidirectional=bidirectional, first_key=first_key)


def name_activation_axes(*, transposed: bool) -> tuple[str, str]:
    """Return the logical names of the first two dimensions of activations."""
    return ("length", "batch") if transposed else ("batch", "length")


def draw_dropout_masks(module: Any, x: Any, widths: Mapping[str, int]) -> Mapping[str, Any]:
    """Draw the dropout masks of a layer.

    Args:
      module: the layer, which has `config`, `deterministic` and `transposed`.
      x: its activations.
      widths: the number of features of each mask, by a name for the mask.

    Returns:
      For each name a mask, bool [batch, width], which is True for what is kept. None instead of
      each mask if there is no dropout.
    """
    if module.deterministic or module.config.dropout_rate == 0:
        return dict.fromkeys(widths)
    return dropout.draw_masks(
        module, module.config.dropout_rate, x.shape[1 if module.transposed else 0], widths
    )


def apply_dropout(config: T5Config, x: Any, keep_mask: Any, *, transposed: bool) -> Any:
    """Apply dropout to activations; the same features are dropped along the whole length, as in T5.

    Args:
      config: the network's configuration.
      x: activations.
      keep_mask: bool [batch, features], from draw_dropout_masks; None for no dropout.
      transposed: whether the activations have the length first.
    """
    if keep_mask is None:
        return x
    broadcast_mask = keep_mask[None] if transposed else keep_mask[:, None]
    return dropout.apply_mask(x, broadcast_mask, config.dropout_rate)


def make_norm(config: T5Config, name: str) -> nn.Module:
    """Return a norm of the network, as a module of the caller."""
    norm_class: Any = RMSNorm if config.norm == "rms" else LayerNorm
    norm: nn.Module = norm_class(config.dtype, epsilon=config.norm_epsilon, name=name)
    return norm


def activate(name: str, x: Any) -> Any:
    """Apply an activation of the MLP, see T5Config.mlp_activations."""
    if name == "linear":
        return x
    if name == "gelu_exact":
        return nn.gelu(x, approximate=False)
    return getattr(nn, name)(x)


def rotate_positions(x: Any, *, transposed: bool) -> Any:
    """Turn queries or keys by their positions: the rotary embedding.

    Feature i of a head is turned together with feature i + head_dim / 2, as in LLaMA.
    Source: Su et al. 2021, arXiv:2104.09864.

    Args:
      x: [batch, length, heads, head_dim], or with the length first.
      transposed: whether the length comes first.
    """
    length, head_dim = x.shape[0 if transposed else 1], x.shape[-1]
    frequencies = RotaryEmbedding().compute_frequencies(head_dim)
    angles = np.arange(length)[:, None] * frequencies
    shape = (length, 1, 1, head_dim // 2) if transposed else (length, 1, head_dim // 2)
    cosine = jnp.asarray(np.cos(angles).reshape(shape), jnp.float32)
    sine = jnp.asarray(np.sin(angles).reshape(shape), jnp.float32)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Attention(nn.Module):
    """Multi-head attention with T5's parameters `query`, `key`, `value` and `out`."""

    config: T5Config
    transposed: bool = False
    decode: bool = False

    @nn.compact
    def __call__(
        self,
        queries: Any,
        memory: Any,
        context: AttentionContext,
        keep_mask: Any = None,
        prefill_lengths: Any = None,
    ) -> Any:
        """Return the attention's output, in the shape of `queries`.

        Args:
          queries: activations.
          memory: activations that the keys and values are made from; `queries` in self-attention.
          context: the mask, the bias and the implementation.
          keep_mask: the dropout mask of the attention weights, bool [batch, heads x keys], or None.
          prefill_lengths: int32 [batch], if a prompt of these lengths is written into the cache.
        """
        query, key, value = self._project(queries, memory, context.implementation)
        if self.config.positions == "rotary":
            query = rotate_positions(query, transposed=self.transposed)
            key = rotate_positions(key, transposed=self.transposed)
        if self.decode or prefill_lengths is not None:
            key, value, relative, visible = kv_cache.update_cache(
                self, key, value, context.relative, prefill_lengths=prefill_lengths
            )
            if visible is not None:
                context = AttentionContext(
                    visible,
                    relative,
                    visible.make_bias(query.shape[1], key.shape[1], relative, self.config.dtype),
                    "xla",
                )
        attended = self._attend(query, key, value, context, keep_mask)
        width = self.config.num_heads * self.config.head_dim
        out = self._kernel("out", width, queries.shape[-1], ("joined_kv", "embed"))
        if keep_mask is not None and context.implementation != "xla":
            # `_attend` left the division by this probability out. In the kernel, which is still
            # float32 here, it costs no pass over the activations and no rounding.
            keep = dropout.compute_keep_probability(self.config.dropout_rate, self.config.dtype)
            out = out.divide(keep)
        return apply_projections(
            attended.reshape(*attended.shape[:2], width), [out], self.config.dtype
        )[0]

    def _attend(
        self, query: Any, key: Any, value: Any, context: AttentionContext, keep_mask: Any
    ) -> Any:
        """Return the values weighted by the attention, [.., .., heads, head_dim].

        With dropout, a fused kernel's result still has to be divided by the probability of keeping
        a key.
        """
        head_dim = self.config.head_dim
        if context.implementation == "xla":
            if self.config.scale_attn_logits:
                query = query / jnp.sqrt(head_dim).astype(query.dtype)
            return attention.compute_plain_attention(
                query,
                key,
                value,
                bias=context.bias,
                float32_logits=self.config.float32_attention_logits,
                drop=functools.partial(self._drop_weights, keep_mask),
                transposed=self.transposed,
            )
        scale = head_dim**-0.5 if self.config.scale_attn_logits else 1.0
        if keep_mask is not None:
            value = attention.zero_dropped_keys(value, keep_mask, transposed=self.transposed)
        if context.implementation == "sparse":
            return self._attend_sparsely(query * scale, key, value, context)
        if context.implementation == "te":
            return transformer_engine.compute_attention(
                query,
                key,
                value,
                relative=context.relative,
                mask=context.mask,
                scale=scale,
                transposed=self.transposed,
            )
        if self.transposed:
            query, key, value = (jnp.swapaxes(array, 0, 1) for array in (query, key, value))
        attended = attention.compute_fused_attention(
            query,
            key,
            value,
            relative=context.relative,
            mask=context.mask,
            scale=scale,
            implementation=context.implementation,
        )
        return jnp.swapaxes(attended, 0, 1) if self.transposed else attended

    def _attend_sparsely(self, query: Any, key: Any, value: Any, context: AttentionContext) -> Any:
        """Return the values weighted by block-sparse attention, see _attend."""
        if self.transposed:
            query, key, value = (jnp.swapaxes(array, 0, 1) for array in (query, key, value))
        attended = block_sparse.compute_block_sparse_attention(
            query,
            key,
            value,
            context.mask.valid_keys,
            self.config.sparse_attention,
            context.relative,
        )
        return jnp.swapaxes(attended, 0, 1) if self.transposed else attended

    def _project(self, queries: Any, memory: Any, implementation: str) -> tuple[Any, Any, Any]:
        """Return the queries, keys and values, each [.., .., heads, head_dim] in the layout of the
        activations.

        Args:
          queries: as for __call__.
          memory: as for __call__.
          implementation: that of the attention.
        """
        config = self.config
        width = config.num_heads * config.head_dim
        initializer = _make_initializer("normal")

        def initialize_query(*args: Any) -> Any:
            # T5 does not scale attention logits. It starts with smaller queries instead.
            return initializer(*args) / jnp.sqrt(config.head_dim).astype(config.dtype)

        names = ("embed", "joined_kv")
        query_kernel = self._kernel("query", queries.shape[-1], width, names, initialize_query)
        key_kernel = self._kernel("key", memory.shape[-1], width, names, initializer)
        value_kernel = self._kernel("value", memory.shape[-1], width, names, initializer)
        if config.fuse_qkv and memory is queries:
            kernels = [query_kernel, key_kernel, value_kernel]
            multiply = self._choose_multiply(queries, len(kernels), implementation)
            query, key, value = apply_projections(queries, kernels, config.dtype, multiply)
        elif config.fuse_qkv:
            (query,) = apply_projections(queries, [query_kernel], config.dtype)
            kernels = [key_kernel, value_kernel]
            multiply = self._choose_multiply(memory, len(kernels), implementation)
            key, value = apply_projections(memory, kernels, config.dtype, multiply)
        else:
            (query,) = apply_projections(queries, [query_kernel], config.dtype)
            (key,) = apply_projections(memory, [key_kernel], config.dtype)
            (value,) = apply_projections(memory, [value_kernel], config.dtype)
        axes = (*name_activation_axes(transposed=self.transposed), "heads", "kv")

        def split_heads(projected: Any) -> Any:
            shape = (*projected.shape[:2], config.num_heads, config.head_dim)
            return with_sharding_constraint(projected.reshape(shape), axes)

        return split_heads(query), split_heads(key), split_heads(value)

    def _choose_multiply(self, x: Any, parts: int, implementation: str) -> Callable[..., Any]:
        """Return what multiplies several kernels in one product in FP8.

        The backward pass has a kernel of its own if cuDNN writes the gradients of the products.
        Otherwise XLA computes them where it casts them to FP8.

        Args:
          x: activations.
          parts: the number of kernels.
          implementation: that of the attention.
        """
        config = self.config
        is_asked = config.fused_qkv_gradients
        if is_asked is False or self.is_initializing():
            return fp8.multiply_kernels
        gradients = None
        if config.fp8 != "xla":
            problem = "the kernel needs ENABLE_FP8=1 and ENABLE_TE=0"
        elif not is_asked and (implementation != "cudnn" or config.positions == "rotary"):
            problem = "not the gradients of cuDNN's attention"
        else:
            gradients, problem = fp8_joined.plan_gradients(
                (*x.shape[:-1], config.num_heads * config.head_dim),
                (*name_activation_axes(transposed=self.transposed), "joined_kv"),
                parts,
                length_first=self.transposed,
            )
        if gradients is None and is_asked:
            fallback_notice.warn_once("joined gradients by XLA's kernels", problem)
        on_cpu = gradients is not None and gradients.placement.interpret
        if gradients is None or (on_cpu and not is_asked):
            return fp8.multiply_kernels
        return functools.partial(fp8_joined.multiply_kernels, gradients=gradients)

    def _kernel(
        self, name: str, inputs: int, outputs: int, names: tuple[str, str], init: Any = None
    ) -> Any:
        """Return the kernel of a projection, with the logical names of its two dimensions."""
        init = init or _make_initializer("normal")
        return _make_kernel(self.config, name, inputs, outputs, names, init)

    def _drop_weights(self, keep_mask: Any, weights: Any) -> Any:
        """Apply dropout to attention weights [batch, heads, queries, keys]: the same keys are
        dropped for all queries, as in T5.
        """
        if keep_mask is None:
            return weights
        batch, heads, _, keys = weights.shape
        broadcast_mask = keep_mask.reshape(batch, heads, 1, keys)
        return dropout.apply_mask(weights, broadcast_mask, self.config.dropout_rate)


class Mlp(nn.Module):
    """The feed-forward block.

    Its parameters are T5's: `wi`, or `wi_0` and `wi_1` if the block is gated, and `wo`.
    """

    config: T5Config
    transposed: bool = False

    @nn.compact
    def __call__(self, x: Any, keep_mask: Any = None) -> Any:
        """Return the block's output for activations, in their shape.

        Args:
          x: activations.
          keep_mask: the dropout mask of the hidden features, bool [batch, mlp_dim], or None.
        """
        config = self.config
        names = ["wi"]
        if len(config.mlp_activations) > 1:
            names = [f"wi_{index}" for index in range(len(config.mlp_activations))]
        kernels = [
            self._kernel(name, x.shape[-1], config.mlp_dim, ("embed", "mlp")) for name in names
        ]
        output_kernel = self._kernel("wo", config.mlp_dim, x.shape[-1], ("mlp", "embed"))
        axes = (*name_activation_axes(transposed=self.transposed), "mlp")
        placement = self._choose_kernel_placement(x, axes, keep_mask)
        if placement is not None:
            projections = [*kernels, output_kernel]
            return fp8_mlp.apply_mlp(mlp_kernels.GEGLU, x, projections, config.dtype, placement)
        if config.joins_mlp_halves:
            projected = apply_projections(x, kernels, config.dtype)
        else:
            projected = tuple(apply_projections(x, [kernel], config.dtype)[0] for kernel in kernels)
        activated = [
            activate(name, part)
            for name, part in zip(config.mlp_activations, projected, strict=True)
        ]
        hidden = functools.reduce(operator.mul, activated)
        hidden = apply_dropout(config, hidden, keep_mask, transposed=self.transposed)
        hidden = with_sharding_constraint(hidden, axes)
        return apply_projections(hidden, [output_kernel], config.dtype)[0]

    def _choose_kernel_placement(
        self, x: Any, axes: tuple[str, str, str], keep_mask: Any
    ) -> Placement | None:
        """Return where the kernels of `fp8_mlp` run, None if XLA's own kernels compute the block.

        Args:
          x: activations.
          axes: the logical names of the hidden features' dimensions.
          keep_mask: the dropout mask of the hidden features, or None.
        """
        config = self.config
        if config.fused_geglu is False or self.is_initializing():
            return None
        placement = None
        if config.fp8 != "xla" or config.mlp_activations != ("gelu", "linear"):
            problem = (
                "the fused kernel needs ENABLE_FP8=1, ENABLE_TE=0 and the activations gelu and "
                "linear"
            )
        elif not config.joins_mlp_halves:
            problem = "both halves of the MLP are not one product"
        elif keep_mask is not None:
            problem = "dropout"
        elif config.lora is not None and any(map(config.lora.has_target, ("wi_0", "wi_1", "wo"))):
            problem = "LoRA adapters"
        elif config.use_biases:
            problem = "biases"
        else:
            hidden_shape = (*x.shape[:-1], config.mlp_dim)
            placement, problem = fp8_mlp.choose_placement(
                mlp_kernels.GEGLU,
                current_mesh.find_mesh(),
                hidden_shape,
                kernel_placement.find_logical_axes(axes),
            )
        if placement is None and config.fused_geglu:
            fallback_notice.warn_once("the MLP by XLA's kernels instead of the fused one", problem)
        on_cpu = placement is not None and placement.interpret
        return None if on_cpu and not config.fused_geglu else placement

    def _kernel(self, name: str, inputs: int, outputs: int, names: tuple[str, str]) -> Any:
        """Return a kernel, with the logical names of its two dimensions."""
        init = _make_initializer("truncated_normal")
        return _make_kernel(self.config, name, inputs, outputs, names, init)


def _make_kernel(
    config: T5Config, name: str, inputs: int, outputs: int, names: tuple[str, str], init: Any
) -> Any:
    """Return the kernel of a projection, with its adapter if the configuration gives it one.

    Args:
      config: the network's configuration.
      name: the name of the projection.
      inputs: the number of input features.
      outputs: the number of output features.
      names: the logical names of the kernel's two dimensions.
      init: the initializer of the kernel.
    """
    options: dict[str, Any] = {"fp8": config.fp8, "has_bias": config.use_biases}
    if config.lora is not None and config.lora.has_target(name):
        options |= {"lora_rank": config.lora.rank, "lora_alpha": config.lora.alpha}
    return Kernel(inputs, outputs, names, init, **options, name=name)()


def _make_initializer(distribution: str) -> Any:
    """Return T5's initializer of kernels: variance 1 / inputs, in a distribution of Flax."""
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution)


class EncoderLayer(nn.Module):
    """A layer of the encoder: self-attention, then the MLP."""

    config: T5Config
    deterministic: bool
    transposed: bool

    @nn.compact
    def __call__(self, inputs: Any, context: AttentionContext) -> Any:
        """Return the layer's output for activations, in their shape."""
        config = self.config
        length = inputs.shape[0 if self.transposed else 1]
        widths = {
            "attention": config.emb_dim,
            "weights": config.num_heads * length,
            "hidden": config.mlp_dim,
            "mlp": config.emb_dim,
        }
        masks = draw_dropout_masks(self, inputs, widths)
        context = add_layer_bias(config, context, bidirectional=True)
        is_before = config.norm_order == "pre"
        x = make_norm(config, "pre_attention_layer_norm")(inputs) if is_before else inputs
        x = Attention(config, self.transposed, name="attention")(x, x, context, masks["weights"])
        x = apply_dropout(config, x, masks["attention"], transposed=self.transposed) + inputs
        if not is_before:
            x = make_norm(config, "post_attention_layer_norm")(x)
        y = make_norm(config, "pre_mlp_layer_norm")(x) if is_before else x
        y = Mlp(config, self.transposed, name="mlp")(y, masks["hidden"])
        y = apply_dropout(config, y, masks["mlp"], transposed=self.transposed) + x
        return y if is_before else make_norm(config, "post_mlp_layer_norm")(y)


class DecoderLayer(nn.Module):
    """A layer of the decoder: self-attention, attention to an encoder if there is one, and the MLP.

    `decode` generates one token at a time, with a cache of keys and values.
    """

    config: T5Config
    deterministic: bool
    transposed: bool
    decode: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: Any,
        context: AttentionContext,
        encoded: Any = None,
        encoder_context: AttentionContext | None = None,
        prefill_lengths: Any = None,
    ) -> Any:
        """Return the layer's output, in the shape of `inputs`.

        Args:
          inputs: activations.
          context: the context of the self-attention.
          encoded: the encoder's output in the layout of activations, or None.
          encoder_context: the context of the attention to the encoder, or None.
          prefill_lengths: int32 [batch], if a prompt of these lengths is written into the cache.
        """
        config = self.config
        length_axis = 0 if self.transposed else 1
        widths = {
            "attention": config.emb_dim,
            "weights": config.num_heads * inputs.shape[length_axis],
            "hidden": config.mlp_dim,
            "mlp": config.emb_dim,
        }
        if encoder_context is not None:
            widths |= {
                "cross": config.emb_dim,
                "cross_weights": config.num_heads * encoded.shape[length_axis],
            }
        masks = draw_dropout_masks(self, inputs, widths)
        context = add_layer_bias(config, context, bidirectional=False)
        x = RMSNorm(config.dtype, name="pre_self_attention_layer_norm")(inputs)
        x = Attention(config, self.transposed, decode=self.decode, name="self_attention")(
            x, x, context, masks["weights"], prefill_lengths
        )
        x = apply_dropout(config, x, masks["attention"], transposed=self.transposed) + inputs
        if encoder_context is not None:
            y = RMSNorm(config.dtype, name="pre_cross_attention_layer_norm")(x)
            y = Attention(config, self.transposed, name="encoder_decoder_attention")(
                y, encoded, encoder_context, masks["cross_weights"]
            )
            x = apply_dropout(config, y, masks["cross"], transposed=self.transposed) + x
        z = RMSNorm(config.dtype, name="pre_mlp_layer_norm")(x)
        z = Mlp(config, self.transposed, name="mlp")(z, masks["hidden"])
        return apply_dropout(config, z, masks["mlp"], transposed=self.transposed) + x
