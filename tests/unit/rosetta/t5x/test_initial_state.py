from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rosetta.t5x import initial_state
from rosetta.t5x.network import Transformer
from rosetta.t5x.run.model_config import T5Config

MESH = Mesh(np.array(jax.devices()).reshape(-1, 1), ("data", "model"))
WHOLE = NamedSharding(MESH, PartitionSpec())


def state(key: Any) -> Any:
    """A network's parameters, and for each the optimizer's zeros; a step."""
    config = T5Config(
        vocab_size=48,
        emb_dim=16,
        num_heads=2,
        head_dim=8,
        mlp_dim=24,
        num_encoder_layers=3,
        num_decoder_layers=2,
        fp8="xla",
    )
    tokens = jax.numpy.ones((2, 8), "int32")
    variables = Transformer(config).init(
        {"params": key, "dropout": key}, tokens, tokens, tokens, enable_dropout=False
    )
    variables = {name: tree for name, tree in variables.items() if name != "params_axes"}
    return {
        "step": 0,
        "variables": variables,
        "moments": jax.tree.map(jax.numpy.zeros_like, variables["params"]),
    }


@pytest.fixture(scope="module")
def made() -> tuple[Any, int]:
    compiled: list[object] = []
    real = jax.stages.Lowered.compile

    def counted(lowered: Any) -> Any:
        compiled.append(lowered)
        return real(lowered)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", counted)
        key = jax.random.PRNGKey(3)
        where = jax.tree.map(lambda _: WHOLE, jax.eval_shape(state, key))
        found = initial_state.make_arrays(state, key, where)
    return found, len(compiled)


def test_the_arrays_equal_those_of_jit(made: tuple[Any, int]) -> None:
    expected = jax.jit(state)(jax.random.PRNGKey(3))
    assert jax.tree.structure(made[0]) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(made[0]), jax.tree.leaves(expected), strict=True):
        assert (mine.shape, mine.dtype, mine.weak_type) == (
            theirs.shape,
            theirs.dtype,
            theirs.weak_type,
        )
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_equal_programs_are_compiled_once(made: tuple[Any, int]) -> None:
    leaves = len(jax.tree.leaves(made[0]))
    assert leaves > 300
    assert made[1] < 40


def test_layers_differ(made: tuple[Any, int]) -> None:
    encoder = made[0]["variables"]["params"]["encoder"]
    first, second = (
        np.asarray(encoder[f"layers_{index}"]["attention"]["query"]["kernel"]) for index in (0, 1)
    )
    assert np.abs(first - second).max() > 0.01


def test_no_two_arrays_share_a_buffer(made: tuple[Any, int]) -> None:
    # A training step that gives its state away may not be given one buffer twice.
    buffers = [
        leaf.addressable_data(0).unsafe_buffer_pointer() for leaf in jax.tree.leaves(made[0])
    ]
    assert len(set(buffers)) == len(buffers)


def test_arrays_have_the_requested_shardings() -> None:
    devices = len(jax.devices())

    def two(key: Any) -> Any:
        return {
            "a": jax.random.normal(key, (devices * 2, 3)),
            "b": jax.random.normal(jax.random.fold_in(key, 5), (devices * 2, 3)),
        }

    shapes = jax.eval_shape(two, jax.random.PRNGKey(0))
    where = initial_state.make_shardings(MESH, {"a": PartitionSpec("data"), "b": None}, shapes)
    found = initial_state.make_arrays(two, jax.random.PRNGKey(0), where)
    assert found["a"].sharding == NamedSharding(MESH, PartitionSpec("data"))
    assert found["b"].sharding == WHOLE
    expected = two(jax.random.PRNGKey(0))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_keys_made_from_keys_and_constants_of_the_program() -> None:
    table: Any = np.arange(6.0, dtype=np.float32)

    def nested(key: Any) -> Any:
        keys = [jax.random.fold_in(jax.random.fold_in(key, index), 7) for index in range(3)]
        return [jax.random.uniform(each, (6,)) + table for each in keys]

    key = jax.random.key(1)
    where = jax.tree.map(lambda _: WHOLE, jax.eval_shape(nested, key))
    for mine, theirs in zip(
        initial_state.make_arrays(nested, key, where), nested(key), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_programs_that_differ_in_a_constant_are_not_confused() -> None:
    def scaled(key: Any) -> Any:
        return [
            jax.random.uniform(jax.random.fold_in(key, index), (4,)) * scale
            for index, scale in enumerate((1.0, 2.0, 1.0))
        ]

    key = jax.random.key(2)
    where = jax.tree.map(lambda _: WHOLE, jax.eval_shape(scaled, key))
    for mine, theirs in zip(
        initial_state.make_arrays(scaled, key, where), scaled(key), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
