"""Gradients cross the data axis once, in the type asked for."""

from __future__ import annotations

from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
pytest.importorskip("t5x.utils", reason=REASON)

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rosetta.errors import UserError
from rosetta.t5x import reduction, trainer
from rosetta.t5x.partitioning import PjitPartitioner
from tests.rosetta.t5x.test_partitioning import machines

PARAMS = {"kernel": jax.ShapeDtypeStruct((16, 32), jnp.float32), "scale": jax.ShapeDtypeStruct((6,), jnp.float32)}
AXES = {"kernel": PartitionSpec(None, "model"), "scale": PartitionSpec(None)}
BATCH = {"tokens": jax.ShapeDtypeStruct((16, 4), jnp.int32)}


def _collectives(platform: str, dtype: str, split: int = 1, *, fsdp: bool = False) -> list[tuple[str, str, tuple[int, ...]]]:
    """Trace the sum of a step's gradients on 8 devices nobody has; return each operation between devices, its type and shape."""
    partitioner = PjitPartitioner(split, devices=machines(1, 8, platform), fsdp=fsdp)

    def gradients(params: Any, state: Any, batch: Any, rng: Any) -> Any:
        del rng
        rows = jnp.sum(batch["tokens"]).astype(jnp.float32)
        return jax.tree.map(lambda leaf: leaf * rows, params), {}, state

    summed = reduction.over_data(gradients, partitioner, dtype, AXES)
    traced = jax.make_jaxpr(summed)(PARAMS, {"scale": jax.ShapeDtypeStruct((1,), jnp.float32)}, BATCH, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
    (mapped,) = [equation for equation in traced.eqns if equation.primitive.name == "shard_map"]
    named = [equation for equation in mapped.params["jaxpr"].eqns if equation.primitive.name.startswith(("psum", "reduce_scatter", "pmax", "all_gather"))]
    return [(equation.primitive.name.split("_invariant")[0], str(variable.aval.dtype), variable.aval.shape) for equation in named for variable in equation.invars]


@pytest.mark.parametrize("dtype", reduction.DTYPES)
def test_every_gradient_is_added_up_once_in_the_type(dtype: str) -> None:
    assert sorted(_collectives("gpu", dtype)) == [("pmax", "float32", (1,)), ("psum", dtype, (6,)), ("psum", dtype, (16, 32))]


def test_with_fsdp_each_group_gets_the_part_whose_state_it_holds() -> None:
    found = _collectives("gpu", "bfloat16", fsdp=True)
    assert ("reduce_scatter", "bfloat16", (16, 32)) in found
    assert ("psum", "bfloat16", (6,)) in found  # does not divide by 8
    assert not [name for name, _, shape in found if name == "psum" and shape == (16, 32)]


def test_with_tensor_parallelism_nothing_is_gathered_to_be_scattered() -> None:
    assert ("psum", "bfloat16", (16, 32)) in _collectives("gpu", "bfloat16", 2, fsdp=True)


def test_cpus_round_and_say_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rosetta.nn.route._said", set())
    assert ("psum", "float32", (16, 32)) in _collectives("cpu", "bfloat16")
    assert "gradients: rounded to bfloat16 and added up in float32" in capsys.readouterr().err


@pytest.mark.parametrize(("spec", "whose"), [(PartitionSpec("data"), "a batch"), (None, "a group of devices")])
def test_rows_that_would_be_left_out_of_microbatches(spec: Any, whose: str) -> None:
    with pytest.raises(UserError, match=rf"the 16 rows of {whose}.* do not divide into 3 microbatches; give a divisor of 16"):
        trainer.gradients(None, PARAMS, {}, BATCH, None, 3, spec)
