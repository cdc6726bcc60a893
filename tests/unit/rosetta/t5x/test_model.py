"""The models around the network: the loss over slices, and FP8 state in training, evaluation, scoring and decoding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x", "seqio")

import jax
import jax.numpy as jnp
import numpy as np
import seqio

from rosetta.nn import fp8
from rosetta.t5x import model, optimizer
from tests.support import small_t5

VOCABULARY = seqio.ByteVocabulary(0)


def _model(
    kind: Any = model.EncoderDecoderModel,
    network: Any = small_t5.Transformer,
    settings: dict[str, Any] | None = None,
    **how: Any,
) -> Any:
    vocabularies = (
        {"vocabulary": VOCABULARY, "inputs_bidirectional_attention": False}
        if kind is model.DecoderOnlyModel
        else {"input_vocabulary": VOCABULARY, "output_vocabulary": VOCABULARY}
    )
    return kind(
        network(small_t5.make_config(**(settings or {}))),
        **vocabularies,
        optimizer_def=optimizer.adamw(),
        **how,
    )


@pytest.mark.parametrize("factor", [None, 100, "NUM_REAL_TARGET_TOKENS"])
def test_the_loss_over_slices_is_the_loss(factor: Any) -> None:
    given, params = (
        small_t5.make_batch(),
        small_t5.initialize_variables(small_t5.make_config())["params"],
    )
    how = {"z_loss": 1e-3, "label_smoothing": 0.1, "loss_normalizing_factor": factor}
    found = {
        chunks: jax.jit(
            jax.value_and_grad(
                _model(settings={"loss_chunks": chunks}, **how).loss_fn, has_aux=True
            )
        )(params, given, None)
        for chunks in (0, 5)
    }
    (loss, metrics), gradient = found[0]
    (other_loss, other_metrics), other_gradient = found[5]
    np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
    small_t5.assert_trees_close(other_gradient, gradient, rtol=1e-4, atol=1e-5)
    assert metrics.keys() == other_metrics.keys()
    for name in (
        "accuracy",
        "loss",
        "z_loss",
        "loss_per_nonpadding_target_token",
        "cross_ent_loss",
    ):
        np.testing.assert_allclose(
            other_metrics[name].compute(), metrics[name].compute(), rtol=1e-5, err_msg=name
        )


def _initial(made: Any, given: dict[str, Any]) -> Any:
    shapes, types = (
        {name: each.shape for name, each in given.items()},
        {name: each.dtype for name, each in given.items()},
    )
    return made.get_initial_variables(jax.random.key(0), shapes, types)


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        (model.EncoderDecoderModel, small_t5.Transformer),
        (model.DecoderOnlyModel, small_t5.DecoderOnly),
    ],
    ids=["encoder-decoder", "decoder"],
)
def test_fp8_state_is_used_where_it_is_given(kind: Any, network: Any) -> None:
    given = small_t5.make_batch()
    if kind is model.DecoderOnlyModel:
        given = {name: value for name, value in given.items() if name.startswith("decoder")} | {
            "decoder_causal_attention": (jnp.arange(12)[None] < 4).astype(jnp.int32)
            * jnp.ones((4, 1), jnp.int32)
        }
    narrow, wide = _model(kind, network, {"fp8": "xla"}), _model(kind, network)
    variables = _initial(narrow, given)
    assert f"{fp8.COLLECTION}_axes" in variables
    assert fp8.COLLECTION not in _initial(wide, given)
    params, fresh = variables["params"], {fp8.COLLECTION: variables[fp8.COLLECTION]}
    # A state in use: half the range, so that the numbers differ from those of scales of one.
    used = jax.tree.map(lambda leaf: jnp.full_like(leaf, 3.0), fresh)

    @jax.jit
    def losses(params: Any, state: Any) -> Any:
        return narrow.eval_fn(params, given, state)[0]

    exact = wide.eval_fn(params, given, used)[
        0
    ]  # a checkpoint with FP8 state evaluated without FP8
    np.testing.assert_allclose(exact, wide.eval_fn(params, given)[0], rtol=1e-6)
    without, with_fresh, with_used = losses(params, {}), losses(params, fresh), losses(params, used)
    np.testing.assert_allclose(
        without, with_fresh, rtol=1e-6
    )  # parameters without state (of a bfloat16 checkpoint) get a fresh one
    assert with_used != with_fresh
    for each in (with_fresh, with_used):
        np.testing.assert_allclose(each, exact, rtol=0.05)

    scores = narrow.score_batch(params, given, flax_mutables=used)
    np.testing.assert_allclose(scores, wide.score_batch(params, given), rtol=0.05)
    tokens = narrow.predict_batch(
        params,
        given,
        flax_mutables=used,
        **({"rng": jax.random.key(0)} if kind is model.DecoderOnlyModel else {}),
    )
    assert tokens.shape[0] == 4
    assert int(tokens.max()) < 128


def test_decoding_is_greedy_search_of_the_networks_own_logits() -> None:
    """Beam search with one beam over the cache gives what choosing the likeliest token of the whole sequence gives."""
    made, given = _model(), small_t5.make_batch(targets=6)
    params = small_t5.initialize_variables(small_t5.make_config())["params"]
    found = np.asarray(made.predict_batch_with_aux(params, given, num_decodes=1)[0])
    whole = jax.jit(
        lambda inputs: small_t5.apply_network(
            made.module,
            {"params": params},
            {
                **given,
                "decoder_input_tokens": inputs,
                "decoder_target_tokens": jnp.ones_like(inputs),
            },
        )
    )
    for row in range(4):
        inputs: np.ndarray = np.zeros((4, 6), np.int32)
        for position in range(6):
            token = int(whole(jnp.asarray(inputs))[row, position].argmax())
            assert token == found[row, position]
            if token == 1:
                break
            if position < 5:
                inputs[row, position + 1] = token
