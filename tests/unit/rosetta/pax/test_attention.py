"""Fused attention in praxis' layers: the very call to it, by XLA's implementation, against upstream's layers; and who is asked for what."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "flax", "praxis")

import jax
import jax.numpy as jnp
import numpy as np
from praxis import base_layer, pax_fiddle
from praxis.layers import attentions, embedding_softmax, multi_query_attention

from rosetta.core import log
from rosetta.pax import attention

BATCH, LENGTH, WIDE = 3, 16, 32
_SHARED: dict[str, Any] = {"input_dim": WIDE, "hidden_dim": WIDE, "num_heads": 4, "dim_per_head": 8}
_GPT: dict[str, Any] = {"combine_qkv": True, "internal_enable_per_dim_scale": False}
_ROTARY: dict[str, Any] = {
    "use_rotary_position_emb": True,
    "rotary_position_emb_tpl": pax_fiddle.Config(embedding_softmax.RotaryPositionalEmbedding),
}
LAYERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt": (attentions.DotProductAttention, attention.DotProductAttention, _GPT),
    "scaled by a parameter": (attentions.DotProductAttention, attention.DotProductAttention, {}),
    "scaled logits": (
        attentions.DotProductAttention,
        attention.DotProductAttention,
        {**_GPT, "internal_enable_query_scale": False, "scale_logits_by_head_dims": True},
    ),
    "llama": (attentions.DotProductAttention, attention.DotProductAttention, {**_GPT, **_ROTARY}),
    "groups": (
        multi_query_attention.MultiQueryDotProductAttention,
        attention.MultiQueryAttention,
        {"num_kv_heads": 2, **_ROTARY},
    ),
    "one head of keys": (
        multi_query_attention.MultiQueryDotProductAttention,
        attention.MultiQueryAttention,
        {"num_kv_heads": 1, **_ROTARY},
    ),
}


def _make_inputs() -> tuple[Any, Any, Any, Any]:
    """Activations, the mask that praxis makes for causal rows with padding at the end, positions, and which tokens are real."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDE)), jnp.float32)
    paddings = (jnp.arange(LENGTH)[None] >= jnp.array([[LENGTH], [9], [4]])).astype(jnp.float32)
    mask = attentions.merge_masks(
        attentions.convert_paddings_to_mask(paddings), attentions.causal_mask(x)
    )
    return x, mask, jnp.tile(jnp.arange(LENGTH)[None], (BATCH, 1)), paddings == 0


def _compute_gradients(layer: Any, variables: Any) -> tuple[Any, Any]:
    """The result of a layer at the real tokens, and the gradients of a loss of it."""
    x, mask, positions, real = _make_inputs()
    target = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    def loss(variables: Any, x: Any) -> Any:
        result = layer.apply(variables, x, x, x, mask, positions, positions)[0]
        return jnp.sum(jnp.where(real[..., None], result * target, 0)), result

    (_, result), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(variables, x)
    return result[real], gradients


def _assert_near(gradients: Any, expected: Any) -> None:
    pairs = zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True)
    for leaf, expected_leaf in pairs:
        tolerance = 1e-5 * max(1.0, float(jnp.max(jnp.abs(expected_leaf))))
        np.testing.assert_allclose(leaf, expected_leaf, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_fused_attention_equals_upstreams_without_padding(name: str) -> None:
    upstreams, ours, more = LAYERS[name]
    plain = base_layer.instantiate(pax_fiddle.Config(upstreams, name="it", **_SHARED, **more))
    fused = base_layer.instantiate(
        pax_fiddle.Config(ours, name="it", **_SHARED, **more, implementation="xla")
    )
    x, mask, positions, _ = _make_inputs()
    variables = plain.init(jax.random.key(1), x, x, x, mask, positions, positions)
    expected, expected_gradients = _compute_gradients(plain, variables)
    result, gradients = _compute_gradients(fused, variables)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    _assert_near(gradients, expected_gradients)


_BFLOAT: dict[str, Any] = {**_SHARED, **_GPT, "fprop_dtype": jnp.bfloat16}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"packed": True}, "packed examples"),
        ({"atten_logit_cap": 50.0}, "capped logits"),
        ({"attention_extra_logit": 0.0}, "an extra logit in the softmax"),
        ({"zero_fully_masked": True}, "rows that see nothing are to be zero"),
        ({"dim_per_head": 6, "use_bias": False}, "heads of 6"),
        ({"fprop_dtype": jnp.float32}, "activations in float32"),
        ({"atten_dropout_prob": 0.1}, "attention dropout"),
    ],
)
def test_upstreams_layer_computes_what_a_kernel_cannot(
    capsys: pytest.CaptureFixture[str], more: Any, says: str
) -> None:
    log.forget_shown()
    x, mask, positions, _ = _make_inputs()
    sizes = {**_BFLOAT, **more}
    x = x.astype(sizes["fprop_dtype"])
    ours = base_layer.instantiate(
        pax_fiddle.Config(attention.DotProductAttention, name="it", **sizes)
    )
    plain = base_layer.instantiate(
        pax_fiddle.Config(
            attentions.DotProductAttention,
            name="it",
            **{name: value for name, value in sizes.items() if name != "packed"},
        )
    )
    variables = plain.init(jax.random.key(1), x, x, x, mask, positions, positions)
    found, expected = (
        layer.apply(variables, x, x, x, mask, rngs={"random": jax.random.key(2)})[0]
        for layer in (ours, plain)
    )
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    assert f"attention by XLA instead of cuDNN: {says}" in capsys.readouterr().err


def test_upstreams_layer_computes_packed_rows_with_shared_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.forget_shown()
    x, mask, positions, _ = _make_inputs()
    sizes = {**_SHARED, "num_kv_heads": 2, **_ROTARY}
    ours = base_layer.instantiate(
        pax_fiddle.Config(
            attention.MultiQueryAttention, name="it", **sizes, implementation="xla", packed=True
        )
    )
    plain = base_layer.instantiate(
        pax_fiddle.Config(multi_query_attention.MultiQueryDotProductAttention, name="it", **sizes)
    )
    variables = plain.init(jax.random.key(1), x, x, x, mask, positions, positions)
    found, expected = (
        layer.apply(variables, x, x, x, mask, positions, positions)[0] for layer in (ours, plain)
    )
    np.testing.assert_array_equal(found, expected)
    assert "packed examples" in capsys.readouterr().err
