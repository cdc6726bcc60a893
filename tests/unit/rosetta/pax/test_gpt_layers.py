"""The layers of GPT-NeoX: decoding with a cache gives what the whole row gives."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "paxml")

import jax
import jax.numpy as jnp
import numpy as np
from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, embedding_softmax

from rosetta.pax import gpt_layers, rotary

BATCH, LENGTH, WIDTH, HEADS = 2, 9, 32, 4


def _make_layer(fraction: float = 0.5) -> Any:
    config = pax_fiddle.Config(
        gpt_layers.ParallelTransformer,
        name="layer",
        input_dims=WIDTH,
        hidden_dims=48,
        num_heads=HEADS,
        dim_per_head=WIDTH // HEADS,
    )
    attention = config.tr_atten_tpl
    attention.internal_enable_per_dim_scale = False
    attention.combine_qkv = True
    attention.use_rotary_position_emb = True
    attention.rotary_position_emb_tpl = rotary.configure_partial_embedding(
        10_000, fraction, WIDTH // HEADS
    )
    return base_layer.instantiate(config)


def _make_inputs() -> tuple[Any, Any, Any]:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)), jnp.float32)
    paddings = jnp.zeros((BATCH, LENGTH))
    mask = attentions.merge_masks(
        attentions.convert_paddings_to_mask(paddings), attentions.causal_mask(x)
    )
    return x, paddings, mask


def test_attention_and_mlp_read_the_same_input() -> None:
    layer, (x, paddings, mask) = _make_layer(), _make_inputs()
    variables = layer.init(jax.random.key(1), x, paddings, mask)
    result, _ = layer.apply(variables, x, paddings, mask)

    def compute_parts(layer: Any) -> Any:
        normalized = layer.layer_norm(x)
        attended, _ = layer.self_attention(normalized, normalized, normalized, atten_mask=mask)
        return attended, layer.ff_layer(x, paddings=paddings) - x

    attended, mlp_output = layer.apply(variables, method=compute_parts)
    np.testing.assert_allclose(result, x + attended + mlp_output, rtol=1e-5, atol=1e-5)


def test_decoding_with_a_cache_gives_what_the_row_gives() -> None:
    layer, (x, paddings, mask) = _make_layer(), _make_inputs()
    variables = layer.init(jax.random.key(1), x, paddings, mask)
    expected, _ = layer.apply(variables, x, paddings, mask)
    # The first call makes the cache for as many tokens as a row has.
    _, cache = layer.apply(
        variables, jnp.zeros_like(x), paddings, mask, mutable=[base_layer.DECODE_CACHE]
    )
    for step in range(LENGTH):
        result, cache = layer.apply(
            {**variables, **cache},
            x[:, step],
            time_step=jnp.asarray(step),
            attention_mask=jnp.broadcast_to(mask[:, :, step], (BATCH, 1, LENGTH)),
            mutable=[base_layer.DECODE_CACHE],
            method=layer.extend_step,
        )
        np.testing.assert_allclose(result, expected[:, step], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_only_the_first_features_are_turned(fraction: float) -> None:
    depth, width = 16, int(16 * fraction)
    config = rotary.configure_partial_embedding(10_000, fraction, depth)
    config.set(name="rotary", embedding_dims=depth)
    embedding = base_layer.instantiate(config)
    plain = base_layer.instantiate(
        pax_fiddle.Config(
            embedding_softmax.RotaryPositionalEmbedding, name="rotary", embedding_dims=width
        )
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3, depth)), jnp.float32)
    result = embedding.apply({}, x)
    np.testing.assert_allclose(result[..., :width], plain.apply({}, x[..., :width]), atol=1e-6)
    np.testing.assert_array_equal(result[..., width:], x[..., width:])


@pytest.mark.parametrize("fraction", [0, 1.5, 0.1, 0.2])
def test_a_share_of_an_odd_number_of_features_is_refused(fraction: float) -> None:
    with errors.expect_user_error(errors.INVALID, where="ROTARY_FRACTION", value=fraction):
        rotary.configure_partial_embedding(10_000, fraction, 16)
