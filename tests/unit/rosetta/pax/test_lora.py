"""Low-rank adaptation: what is stored is upstream's, the product is that with merged weights, and nothing else is trained."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "flax", "praxis", "paxml")

import jax
import jax.numpy as jnp
import numpy as np
from praxis import base_layer, pax_fiddle
from praxis.contrib.gpu.scripts_gpu import lora_layers
from praxis.layers import attentions, linears, multi_query_attention

from rosetta.pax import lora
from tests.support import pax_training

# Features need not be heads times depth.
_LAYERS: dict[str, tuple[Any, dict[str, Any], tuple[int, ...], Any]] = {
    "linear": (
        linears.Linear,
        {"input_dims": 32, "output_dims": 48},
        (2, 6, 32),
        lora_layers.LoraLinear,
    ),
    "into heads": (
        attentions.AttentionProjection,
        {"input_dim": 32, "num_heads": 4, "dim_per_head": 6},
        (2, 6, 32),
        lora_layers.LoraAttentionProjection,
    ),
    "a step into heads": (
        attentions.AttentionProjection,
        {"input_dim": 32, "num_heads": 4, "dim_per_head": 6},
        (2, 32),
        lora_layers.LoraAttentionProjection,
    ),
    "out of heads": (
        attentions.AttentionProjection,
        {"input_dim": 32, "num_heads": 4, "dim_per_head": 6, "is_output_projection": True},
        (2, 6, 4, 6),
        lora_layers.LoraAttentionProjection,
    ),
    "out of heads as GLaM": (
        attentions.AttentionProjection,
        {
            "input_dim": 32,
            "num_heads": 4,
            "dim_per_head": 6,
            "is_output_projection": True,
            "use_nhd_shape": True,
            "attention_combine_dims": True,
            "use_bias": False,
        },
        (2, 6, 4, 6),
        None,
    ),
    "combined": (
        attentions.CombinedQKVProjectionLayer,
        {"input_dim": 32, "num_heads": 4, "dim_per_head": 6},
        (2, 6, 32),
        lora_layers.LoraCombinedQKVProjection,
    ),
    "one head": (
        multi_query_attention.OneHeadedAttentionProjection,
        {"input_dim": 32, "output_dim": 6},
        (2, 6, 32),
        None,
    ),
}


def _make_layer(kind: Any, sizes: dict[str, Any], x: Any, **more: Any) -> tuple[Any, Any]:
    """A layer and its variables, among which none is zero."""
    layer = base_layer.instantiate(pax_fiddle.Config(kind, name="it", **sizes, **more))
    drawn = np.random.default_rng(0)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), x)
    return layer, jax.tree.map(
        lambda leaf: jnp.asarray(drawn.normal(size=leaf.shape), jnp.float32), shapes
    )


@pytest.mark.parametrize("name", _LAYERS)
def test_a_layer_equals_one_with_merged_weights(name: str) -> None:
    kind, sizes, shape, upstreams = _LAYERS[name]
    x = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    layer, variables = _make_layer(lora.ADAPTED_CLASSES[kind], sizes, x, rank=3)
    plain, _ = _make_layer(kind, sizes, x)
    merged = lora.merge(variables)
    assert jax.tree.structure(merged) == jax.tree.structure(
        jax.eval_shape(plain.init, jax.random.key(0), x)
    )
    found = layer.apply(variables, x)
    expected = [plain.apply(merged, x)]
    if upstreams:
        theirs, known = _make_layer(upstreams, sizes, x, rank=3)
        assert jax.tree.map(jnp.shape, known) == jax.tree.map(jnp.shape, variables)
        expected.append(theirs.apply(variables, x))
    for each in expected:
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
            np.testing.assert_allclose(
                one, other, rtol=1e-5, atol=1e-5 * float(jnp.max(jnp.abs(other)))
            )


def test_repeated_layers_are_merged() -> None:
    drawn = np.random.default_rng(0)
    stacked = {
        "it": {
            "w": drawn.normal(size=(2, 3, 8, 4, 6)),
            "lora_a": drawn.normal(size=(2, 3, 8, 5)),
            "lora_b": drawn.normal(size=(2, 3, 24, 5)),
            "b": np.ones(3),
        }
    }
    merged = lora.merge(stacked)
    assert sorted(merged["it"]) == ["b", "w"]
    for layer in range(2):
        one = lora.merge({name: leaf[layer] for name, leaf in stacked["it"].items() if name != "b"})
        np.testing.assert_allclose(merged["it"]["w"][layer], one["w"], rtol=1e-6)
    np.testing.assert_allclose(
        merged["it"]["w"][1, 2].reshape(8, 24),
        stacked["it"]["w"][1, 2].reshape(8, 24)
        + stacked["it"]["lora_a"][1, 2] @ stacked["it"]["lora_b"][1, 2].T,
        rtol=1e-5,
    )


def test_only_adapters_and_fp8_state_are_trained() -> None:
    run = pax_training.Run(
        pax_training.make_experiment(
            "gqa", USE_LORA=True, LORA_RANK=4, USE_FP8=True, USE_REPEATED_LAYER=True
        )
    )
    params, state = run.params, run.fp8
    adapted = [name for name in params if "lora" in name]
    assert (
        len(adapted) == 2 * 7
    )  # query, key, value and post; both halves of the gated layer and the one after it
    moments = [
        path
        for path, leaf in jax.tree_util.tree_leaves_with_path(run.state.opt_states)
        if leaf.size > 2
    ]
    assert len(moments) == 2 * len(adapted)
    losses = run.steps(2)
    assert losses[1] < losses[0]
    for name, leaf in run.params.items():
        assert np.array_equal(leaf, params[name]) == (name not in adapted), name
    for name, leaf in run.fp8.items():
        assert not np.array_equal(leaf, state[name]), name


def test_a_model_equals_one_with_merged_weights() -> None:
    run = pax_training.Run(
        pax_training.make_experiment("llama", USE_LORA=True, LORA_RANK=4, USE_REPEATED_LAYER=True)
    )
    run.steps(2)
    plain = pax_training.Run(pax_training.make_experiment("llama", USE_REPEATED_LAYER=True))
    before = plain.logits(pax_training.make_batch(9))
    plain.state = plain.state.replace(mdl_vars=lora.merge(run.state.mdl_vars))
    found, expected = (
        plain.logits(pax_training.make_batch(9)),
        run.logits(pax_training.make_batch(9)),
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.max(np.abs(found - before)) > 1e-2  # another model than it was
