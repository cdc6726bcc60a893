"""Gradients cross the data axis once, in the type asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rosetta.core import log
from rosetta.core.variables import choices
from rosetta.t5x import gradient_reduction
from rosetta.t5x.partitioning import PjitPartitioner
from tests.support import small_t5
from tests.unit.rosetta.t5x.test_partitioning import machines

PARAMS = {
    "kernel": jax.ShapeDtypeStruct((16, 32), jnp.float32),
    "scale": jax.ShapeDtypeStruct((6,), jnp.float32),
}
AXES = {"kernel": PartitionSpec(None, "model"), "scale": PartitionSpec(None)}
BATCH = {"tokens": jax.ShapeDtypeStruct((48, 4), jnp.int32)}


def _collectives(
    platform: str, dtype: str, split: int = 1, *, fsdp: bool = False, devices: int = 8
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Trace the sum of a step's gradients on devices nobody has; return each operation between devices, its type and shape."""
    partitioner = PjitPartitioner(split, devices=machines(1, devices, platform), fsdp=fsdp)

    def gradients(params: Any, frozen: Any, state: Any, batch: Any, rng: Any) -> Any:
        del frozen, rng
        rows = jnp.sum(batch["tokens"]).astype(jnp.float32)
        return jax.tree.map(lambda leaf: leaf * rows, params), {}, state

    summed = gradient_reduction.reduce_over_data(gradients, partitioner, dtype, AXES)
    traced = jax.make_jaxpr(summed)(
        PARAMS,
        {},
        {"scale": jax.ShapeDtypeStruct((1,), jnp.float32)},
        BATCH,
        jax.eval_shape(lambda: jax.random.PRNGKey(0)),
    )
    (mapped,) = [equation for equation in traced.eqns if equation.primitive.name == "shard_map"]
    named = [
        equation
        for equation in mapped.params["jaxpr"].eqns
        if equation.primitive.name.startswith(("psum", "reduce_scatter", "pmax", "all_gather"))
    ]
    return [
        (
            equation.primitive.name.split("_invariant")[0],
            str(variable.aval.dtype),
            variable.aval.shape,
        )
        for equation in named
        for variable in equation.invars
    ]


@pytest.mark.parametrize("dtype", choices.GRADIENT_TYPES)
def test_each_gradient_is_added_up_once_in_the_type(dtype: str) -> None:
    assert sorted(_collectives("gpu", dtype)) == [
        ("pmax", "float32", (1,)),
        ("psum", dtype, (6,)),
        ("psum", dtype, (16, 32)),
    ]


def test_with_fsdp_each_group_gets_the_part_whose_state_it_holds() -> None:
    found = _collectives("gpu", "bfloat16", fsdp=True)
    assert ("reduce_scatter", "bfloat16", (16, 32)) in found
    assert ("psum", "bfloat16", (6,)) in found  # does not divide by 8
    assert not [name for name, _, shape in found if name == "psum" and shape == (16, 32)]


def test_over_two_axes_what_is_scattered_over_one_is_added_up_over_the_other() -> None:
    """12 groups are 3 replicas of 4: of the kernel's 16 rows each group gets 4, and 6 do not divide."""
    found = _collectives("gpu", "bfloat16", fsdp=True, devices=12)
    assert sorted(found) == [
        ("pmax", "float32", (1,)),
        ("psum", "bfloat16", (4, 32)),
        ("psum", "bfloat16", (6,)),
        ("reduce_scatter", "bfloat16", (16, 32)),
    ]


def test_with_tensor_parallelism_nothing_is_gathered_to_be_scattered() -> None:
    assert ("psum", "bfloat16", (16, 32)) in _collectives("gpu", "bfloat16", 2, fsdp=True)


def test_cpus_round_and_log_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.forget_shown()
    assert ("psum", "float32", (16, 32)) in _collectives("cpu", "bfloat16")
    assert "gradients: rounded to bfloat16 and added up in float32" in capsys.readouterr().err


def test_types_in_which_gradients_cannot_be_added_up() -> None:
    partitioner, plain = PjitPartitioner(1, devices=machines(1, 8)), small_t5.make_config()
    for fine in (None, "float32", "bfloat16"):
        gradient_reduction.check_support(fine, 1024.0, partitioner, plain)
    with errors.expect_user_error(
        errors.INVALID, where="gradient_dtype", value="float16", remedy="float32, bfloat16"
    ):
        gradient_reduction.check_support("float16", None, partitioner, plain)
    with errors.expect_user_error(
        errors.CONFLICT, where="LOSS_NORMALIZING_FACTOR", value="AVERAGE_PER_SEQUENCE"
    ):
        gradient_reduction.check_support("bfloat16", "AVERAGE_PER_SEQUENCE", partitioner, plain)
    with errors.expect_user_error(errors.UNSUPPORTED, where="GRADIENT_DTYPE", names="mesh"):
        gradient_reduction.check_support(
            "bfloat16",
            None,
            PjitPartitioner(1, devices=machines(1, 8), logical_axis_rules=[("batch", None)]),
            plain,
        )


@pytest.mark.parametrize(
    "by_it", [{"fp8": "te"}, {"attention": "te"}, {"fp8": "te", "attention": "te"}], ids=str
)
def test_transformer_engine_is_refused(by_it: dict[str, str]) -> None:
    partitioner = PjitPartitioner(1, devices=machines(1, 8))
    gradient_reduction.check_support(None, None, partitioner, small_t5.make_config(**by_it))
    with errors.expect_user_error(errors.CONFLICT, where="GRADIENT_DTYPE", remedy="ENABLE_TE=0"):
        gradient_reduction.check_support(
            "float32", None, partitioner, small_t5.make_config(**by_it)
        )


def test_split_models_need_xlas_attention() -> None:
    split = PjitPartitioner(2, devices=machines(1, 8))
    gradient_reduction.check_support("bfloat16", None, split, small_t5.make_config())
    with errors.expect_user_error(
        errors.UNSUPPORTED,
        where="GRADIENT_DTYPE",
        names="cudnn",
        remedy="ATTENTION=xla or TP_SIZE=1",
    ):
        gradient_reduction.check_support(
            "bfloat16", None, split, small_t5.make_config(attention="cudnn")
        )
