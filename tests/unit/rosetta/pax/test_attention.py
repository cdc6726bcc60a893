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


def _given() -> tuple[Any, Any, Any, Any]:
    """Activations, the mask that praxis makes for causal rows with padding at the end, positions, and which tokens are real."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDE)), jnp.float32)
    paddings = (jnp.arange(LENGTH)[None] >= jnp.array([[LENGTH], [9], [4]])).astype(jnp.float32)
    mask = attentions.merge_masks(
        attentions.convert_paddings_to_mask(paddings), attentions.causal_mask(x)
    )
    return x, mask, jnp.tile(jnp.arange(LENGTH)[None], (BATCH, 1)), paddings == 0


@pytest.mark.parametrize("name", LAYERS)
def test_fused_attention_equals_upstreams_without_padding(name: str) -> None:
    upstreams, ours, more = LAYERS[name]
    x, mask, positions, real = _given()
    plain = base_layer.instantiate(pax_fiddle.Config(upstreams, name="it", **_SHARED, **more))
    fused = base_layer.instantiate(
        pax_fiddle.Config(ours, name="it", **_SHARED, **more, implementation="xla")
    )
    variables = plain.init(jax.random.key(1), x, x, x, mask, positions, positions)
    target = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    def loss(layer: Any, variables: Any, x: Any) -> Any:
        made = layer.apply(variables, x, x, x, mask, positions, positions)[0]
        return jnp.sum(jnp.where(real[..., None], made * target, 0)), made

    graded = jax.value_and_grad(loss, argnums=(1, 2), has_aux=True)
    (_, expected), expected_back = graded(plain, variables, x)
    (_, found), back = graded(fused, variables, x)
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(expected_back), strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.max(jnp.abs(other))))
        )


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
    x, mask, positions, _ = _given()
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
    x, mask, positions, _ = _given()
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
