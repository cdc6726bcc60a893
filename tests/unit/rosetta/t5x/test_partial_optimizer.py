"""Frozen parameters: which ones they are, and what the optimizer does with the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as flax_partitioning
from flax.traverse_util import flatten_dict, unflatten_dict
from t5x import adafactor, train_state

from rosetta.t5x import muon, optimizer, partial_optimizer
from rosetta.t5x.network import Transformer
from rosetta.t5x.run.model_config import Lora, T5Config
from tests.support import small_t5

NAMES = (
    "token_embedder/embedding",
    "encoder/layers_0/attention/query/kernel",
    "encoder/layers_1/attention/query/kernel",
    "encoder/layers_10/mlp/wo/kernel",
    "encoder/relpos_bias/rel_embedding",
    "decoder/layers_0/encoder_decoder_attention/query/kernel",
    "decoder/layers_0/pre_mlp_layer_norm/scale",
)


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (["encoder"], [1, 2, 3, 4]),  # and not the decoder's attention to the encoder
        (["encoder/layers_1"], [2]),  # and not layer 10
        ([".*layer_norm", "token_embedder"], [0, 6]),
        ([r".*/query/kernel"], [1, 2, 5]),
    ],
    ids=["part", "layer", "two", "kernels"],
)
def test_a_pattern_freezes_whole_parts(patterns: list[str], frozen: list[int]) -> None:
    found = partial_optimizer.find_frozen(NAMES, patterns)
    assert found == {NAMES[index] for index in frozen}


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("encodr", "encoder"),
        ("relpos_bias", "encoder/relpos_bias"),
        ("zzz", "token_embedder"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(pattern: str, near: str) -> None:
    with errors.expect_user_error(
        errors.UNKNOWN, where=f"FREEZE={pattern}", value=pattern, remedy=near
    ):
        partial_optimizer.find_frozen(NAMES, ["token_embedder", pattern])


def test_something_is_left_to_train() -> None:
    with errors.expect_user_error(errors.CONFLICT, where="FREEZE"):
        partial_optimizer.find_frozen(NAMES, ["encoder|decoder|token_embedder"])
    with errors.expect_user_error(errors.INVALID, where="FREEZE=(", value="("):
        partial_optimizer.restrict_optimizer(optimizer.adamw(), "(", adapters_only=False)


def make_adafactor() -> Any:
    return adafactor.Adafactor(
        decay_rate=0.8,
        step_offset=0,
        min_dim_size_to_factor=16,
        logical_factor_rules=adafactor.standard_logical_factor_rules(),
    )


def make_state(made: Any, config: T5Config) -> train_state.FlaxOptimTrainState:
    batch = small_t5.make_batch()
    variables = Transformer(config).init(
        jax.random.key(0),
        batch["encoder_input_tokens"],
        batch["decoder_input_tokens"],
        batch["decoder_target_tokens"],
        enable_dropout=False,
    )
    return train_state.FlaxOptimTrainState.create(made, flax.core.freeze(variables))


def check_no_state(state: Any, frozen_names: Any) -> None:
    """Check that the optimizer's state has nothing of the frozen parameters."""
    names = flatten_dict(state.state_dict()["state"]["param_states"], sep="/")
    for name in frozen_names:
        assert not [known for known in names if f"/{name}/" in f"/{known}/"], name


def train_alone(alone: Any, made: Any, before: Any, gradients: Any) -> Any:
    """Return the trained part after a step of an optimizer that never saw the frozen part."""
    if hasattr(alone, "set_param_axes"):
        axes = flax_partitioning.get_axis_names(before.params_axes)
        if hasattr(alone.hyper_params, "logical_factor_rules"):
            rules = {**alone.hyper_params.logical_factor_rules, "lora_rank": "none"}
            alone.hyper_params = alone.hyper_params.replace(logical_factor_rules=rules)
        alone.set_param_axes(made.split(axes)[0])
    trained = made.split(before.params)[0]
    return alone.create(trained).apply_gradient(gradients, learning_rate=0.1).target


@pytest.mark.parametrize(
    "make",
    [optimizer.adamw, make_adafactor, optimizer.adamw_rms, muon.muon],
    ids=["adamw", "adafactor", "adamw_rms", "muon"],
)
@pytest.mark.parametrize("lora", [None, Lora(2, 4)], ids=["freeze", "lora"])
def test_frozen_parameters_stay_and_have_no_state(make: Any, lora: Lora | None) -> None:
    config = small_t5.make_config(lora=lora)
    made = partial_optimizer.restrict_optimizer(
        make(), None if lora else "encoder,token_embedder", adapters_only=lora is not None
    )
    before = make_state(made, config)
    trained, frozen = made.split(before.params)
    assert set(trained) <= {"encoder", "decoder"}
    assert frozen
    frozen_names = flatten_dict(flax.core.unfreeze(frozen), sep="/")
    check_no_state(before, frozen_names)
    drawn = np.random.default_rng(0)
    gradients = jax.tree.map(
        lambda leaf: jnp.asarray(drawn.normal(size=leaf.shape), jnp.float32), trained
    )
    after = before.apply_gradient(gradients, learning_rate=0.1)
    assert int(after.step) == 1
    old, new = (flatten_dict(flax.core.unfreeze(tree.params), sep="/") for tree in (before, after))
    assert old.keys() == new.keys()
    for name, value in old.items():
        is_same = np.asarray(value).tobytes() == np.asarray(new[name]).tobytes()
        assert is_same == (name in frozen_names), name
    expected = train_alone(make(), made, before, gradients)
    small_t5.assert_trees_close(made.split(after.params)[0], expected, rtol=0, atol=0)
    # A checkpoint has it all, and layouts have the same tree.
    restored = before.restore_state(after.state_dict())
    small_t5.assert_trees_close(restored.state_dict(), after.state_dict(), rtol=0, atol=0)
    layout = before.as_logical_axes().state_dict()
    assert (
        flatten_dict(layout["target"]).keys() == flatten_dict(before.state_dict()["target"]).keys()
    )


def test_nothing_changes_without_frozen_parameters() -> None:
    made = optimizer.adamw()
    assert partial_optimizer.restrict_optimizer(made, None, adapters_only=False) is made
    assert partial_optimizer.split_params(made, {"a": 1}) == ({"a": 1}, {})
    assert not hasattr(
        partial_optimizer.restrict_optimizer(made, "a", adapters_only=False), "set_param_axes"
    )


# T5 1.1 small, AdamW: two moments and one count for each trained parameter.
def measure_state_bytes(made: Any, lora: Lora | None) -> tuple[int, int]:
    """Return the bytes of the optimizer's state and of all parameters of T5 1.1 small."""
    config = T5Config(
        vocab_size=32128,
        emb_dim=512,
        num_heads=6,
        num_encoder_layers=8,
        num_decoder_layers=8,
        head_dim=64,
        mlp_dim=1024,
        mlp_activations=("gelu", "linear"),
        lora=lora,
    )
    state = jax.eval_shape(lambda: make_state(made, config))

    def count(tree: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    return count(state.param_states), count(state.params)


def test_the_state_of_adapters_is_small() -> None:
    whole, params = measure_state_bytes(optimizer.adamw(), None)
    assert whole == 2 * params + 4
    lora = Lora(8, 16)
    adapters = partial_optimizer.restrict_optimizer(optimizer.adamw(), None, adapters_only=True)
    small, all_params = measure_state_bytes(adapters, lora)
    # Query and value in 8 + 2 x 8 attentions: 8 x (512 + 384) values each, in float32.
    added = 2 * 24 * 8 * (512 + 384) * 4
    assert all_params == params + added
    assert small == 2 * added + 4


def test_gradients_are_not_computed_for_frozen_parameters() -> None:
    from rosetta.t5x import model, trainer
    from tests.support.t5x_topologies import BATCH, CONFIG, VOCABULARY, make_batch

    made = model.EncoderDecoderModel(
        module=Transformer(CONFIG),
        input_vocabulary=VOCABULARY,
        output_vocabulary=VOCABULARY,
        optimizer_def=optimizer.adamw(),
        freeze="encoder,token_embedder",
    )
    batch = make_batch(0, BATCH)
    shapes = {name: leaf.shape for name, leaf in batch.items()}
    variables = jax.eval_shape(lambda: made.get_initial_variables(jax.random.PRNGKey(0), shapes))
    trained, frozen = partial_optimizer.split_params(made.optimizer_def, variables["params"])

    def differentiate(trained: Any, frozen: Any) -> Any:
        return trainer.compute_gradients(
            made, trained, {}, batch, jax.random.PRNGKey(0), 2, None, frozen
        )[0]

    gradients = jax.eval_shape(differentiate, trained, frozen)
    names = flatten_dict(flax.core.unfreeze(gradients), sep="/")
    assert names
    assert {name.partition("/")[0] for name in names} == {"decoder"}


def test_parameters_are_merged_as_they_were() -> None:
    params = flax.core.freeze(unflatten_dict({("a", "b"): 1, ("a", "c"): 2, ("d",): 3}))
    made = partial_optimizer.PartialOptimizer(optimizer.adamw(), ("a/b",), adapters_only=False)
    assert partial_optimizer.merge_params(*made.split(params)) == params
