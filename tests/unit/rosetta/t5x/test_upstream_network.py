"""With every switch off the network is upstream's: the same parameters from the same seed, the same axes, the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x")

import jax
import numpy as np
from t5x.contrib.gpu.t5 import network as upstream
from t5x.examples.decoder_only import network as upstream_decoder
from t5x.examples.scalable_t5 import network as upstream_layered

from tests.support import small_t5


def _theirs(module: Any, **model: Any) -> Any:
    ours = small_t5.make_config(**model)
    names = {field.name for field in dataclasses.fields(module)}
    return module(**{name: getattr(ours, name) for name in names if hasattr(ours, name)})


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"mlp_activations": ("relu",), "logits_via_embedding": True},
        {"scale_attn_logits": True},
        {"float32_attention_logits": True},
    ],
    ids=["T5 1.1", "T5 1.0", "scaled logits", "float32 logits"],
)
def test_encoder_and_decoder(model: dict[str, Any]) -> None:
    given = small_t5.make_batch()
    theirs = upstream.Transformer(config=_theirs(upstream.T5Config, **model))
    words = (
        given["encoder_input_tokens"],
        given["decoder_input_tokens"],
        given["decoder_target_tokens"],
    )
    expected = theirs.init(jax.random.key(0), *words, enable_dropout=False)
    ours = small_t5.Transformer(small_t5.make_config(**model))
    made = ours.init(jax.random.key(0), *words, enable_dropout=False)
    small_t5.assert_trees_close(made["params"], expected["params"], 0, 0)
    assert jax.tree.map(str, made["params_axes"]) == jax.tree.map(str, expected["params_axes"])
    variables = {"params": expected["params"]}
    small_t5.assert_trees_close(
        small_t5.compute_loss_and_gradient(ours, variables, given),
        small_t5.compute_loss_and_gradient(theirs, variables, given),
    )
    small_t5.assert_trees_close(
        small_t5.compute_loss_and_gradient(ours, variables, small_t5.make_packed_batch()),
        small_t5.compute_loss_and_gradient(theirs, variables, small_t5.make_packed_batch()),
    )


def test_a_bias_for_each_layer() -> None:
    """Upstream's scalable T5, of which umT5 is one, without its loop over layers."""
    given = small_t5.make_batch()
    settings = _theirs(upstream_layered.T5Config)
    theirs = upstream_layered.Transformer(config=dataclasses.replace(settings, scan_layers=False))
    words = (
        given["encoder_input_tokens"],
        given["decoder_input_tokens"],
        given["decoder_target_tokens"],
    )
    expected = theirs.init(jax.random.key(0), *words, enable_dropout=False)
    ours = small_t5.Transformer(small_t5.make_config(relative_bias="layer"))
    made = ours.init(jax.random.key(0), *words, enable_dropout=False)

    def reshape(tree: Any) -> Any:
        """Join heads and head_dim, which are two dimensions of upstream's kernels."""
        return jax.tree.map(lambda leaf, own: leaf.reshape(own.shape), tree, made["params"])

    params = reshape(expected["params"])
    small_t5.assert_trees_close(made["params"], params, 0, 0)
    logits, loss, gradient = small_t5.compute_loss_and_gradient(
        theirs, {"params": expected["params"]}, given
    )
    small_t5.assert_trees_close(
        small_t5.compute_loss_and_gradient(ours, {"params": params}, given),
        (logits, loss, reshape(gradient)),
    )


def test_a_decoder_alone() -> None:
    given = small_t5.make_batch()
    words = (given["decoder_input_tokens"], given["decoder_target_tokens"])
    settings = upstream_decoder.TransformerConfig(
        **{
            name: value
            for name, value in small_t5.SMALL.items()
            if not name.startswith("num_e") and not name.startswith("num_d")
        },
        num_layers=2,
    )
    theirs = upstream_decoder.DecoderWrapper(config=settings)
    ours = small_t5.DecoderOnly(small_t5.make_config())
    expected = theirs.init(jax.random.key(0), *words, enable_dropout=False)
    assert jax.tree.map(
        np.shape, ours.init(jax.random.key(0), *words, enable_dropout=False)["params"]
    ) == jax.tree.map(np.shape, expected["params"])
    prefix = (given["decoder_target_tokens"] > 60).astype("int32")

    def evaluated(module: Any, how: dict[str, Any]) -> Any:
        """Logits where no padding is, the loss, and its gradient by the parameters."""

        def both(params: Any) -> Any:
            logits = module.apply({"params": params}, *words, enable_dropout=False, **how)
            return small_t5.compute_loss(logits, given), logits * given["decoder_loss_weights"][
                ..., None
            ]

        return jax.jit(jax.value_and_grad(both, has_aux=True))(expected["params"])

    for how in ({}, {"decoder_causal_attention": prefix}):
        small_t5.assert_trees_close(evaluated(ours, how), evaluated(theirs, how))
