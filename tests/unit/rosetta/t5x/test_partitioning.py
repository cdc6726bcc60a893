"""Which layouts fit, which do not and what is said of them, and where the optimizer's state goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import numpy as np
from jax.sharding import PartitionSpec
from t5x import train_state

from rosetta.core import log
from rosetta.t5x.partitioning import (
    PjitPartitioner,
    check_network_sizes,
    list_tensor_parallel_sizes,
    spread_over_data,
    standard_logical_axis_rules,
)
from rosetta.t5x.run.model_config import T5Config
from rosetta.t5x.run.shard_count import choose_shard_count
from tests.support import train_states


@dataclasses.dataclass(frozen=True)
class Device:
    """As much of a device as a mesh asks for."""

    id: int
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100"
    client: Any = None


def machines(count: int, each: int, platform: str = "gpu") -> list[Device]:
    """Return the devices of some machines, of which this process is none."""
    return [Device(number, number // each, platform) for number in range(count * each)]


@pytest.mark.parametrize(
    ("devices", "local", "sizes"),
    [
        (8, 8, [1, 2, 4, 8]),
        (1, 1, [1]),
        (6, 6, [1, 2, 3, 6]),
        (16, 8, [1, 2, 4, 8, 16]),
        (24, 8, [1, 2, 4, 8, 24]),
        (4, 1, [1, 2, 4]),
    ],
)
def test_which_splits_of_a_model_fit(devices: int, local: int, sizes: list[int]) -> None:
    assert list_tensor_parallel_sizes(devices, local) == sizes


def test_a_split_that_does_not_fit_is_refused_with_those_that_do() -> None:
    with errors.expect_user_error(errors.INVALID, where="TP_SIZE", value=3, remedy=": 1, 2, 4, 8"):
        PjitPartitioner(3, devices=machines(1, 8))
    with errors.expect_user_error(
        errors.INVALID, where="TP_SIZE", value=16, remedy=": 1, 2, 4, 8, 24"
    ):
        PjitPartitioner(16, devices=machines(3, 8))  # two machines of three


@pytest.mark.parametrize("split", [None, 0, -2, 1.0, "2"])
def test_invalid_numbers_of_devices_are_refused(split: Any) -> None:
    with errors.expect_user_error(errors.INVALID, where="TP_SIZE", value=split, remedy="1"):
        PjitPartitioner(split, devices=machines(1, 8))


@pytest.mark.parametrize("split", [1, 2, 8, 16])
def test_a_model_is_split_over_neighbours(split: int) -> None:
    """A model lies within a machine, or over whole ones, whatever the order in which JAX lists the devices."""
    mesh = PjitPartitioner(split, devices=machines(4, 8)).mesh
    assert dict(mesh.shape) == {"data": 32 // split, "model": split}
    for row in mesh.devices:
        hosts = [device.process_index for device in row]
        assert len(set(hosts)) == max(1, split // 8)
        assert [device.id for device in row] == list(range(row[0].id, row[0].id + split))


def test_a_batch_that_does_not_divide_is_refused_with_those_that_do() -> None:
    partitioner = PjitPartitioner(2, devices=machines(1, 8))
    with errors.expect_user_error(
        errors.INVALID, where="batch_size", value=10, remedy="of 4: 8, 12"
    ):
        partitioner.get_data_layout(10)
    with errors.expect_user_error(errors.INVALID, where="batch_size", value=3, remedy="of 4: 4"):
        partitioner.get_data_layout(3)


@pytest.mark.parametrize(
    ("spec", "shape", "spread"),
    [
        (PartitionSpec(None, "model"), (64, 32), PartitionSpec("data", "model")),
        (PartitionSpec("model"), (64, 32), PartitionSpec("model", "data")),
        (PartitionSpec(), (8, 64), PartitionSpec(None, "data")),  # the largest one
        (
            PartitionSpec(None, "model"),
            (6, 32),
            PartitionSpec(None, "model"),
        ),  # 6 does not divide by 4
        (PartitionSpec(None), (64,), PartitionSpec("data")),
        (PartitionSpec("data"), (64, 64), PartitionSpec("data")),
        (PartitionSpec(), (), PartitionSpec()),
        (None, (64,), None),
    ],
)
def test_where_state_is_spread_over_the_data_axis(
    spec: Any, shape: tuple[int, ...], spread: Any
) -> None:
    assert spread_over_data(spec, shape, {"data": 4}) == spread


@pytest.mark.parametrize(
    ("spec", "shape", "spread"),
    [
        (PartitionSpec(None, "model"), (36, 64), PartitionSpec(("replica", "data"), "model")),
        (
            PartitionSpec(),
            (64, 12),
            PartitionSpec(None, ("replica", "data")),
        ),  # the smaller one, as it divides by more
        (PartitionSpec(), (16, 64), PartitionSpec(None, "data")),
        (PartitionSpec(("replica", "data")), (36, 64), PartitionSpec(("replica", "data"))),
        (PartitionSpec(("model", "data")), (36, 64), PartitionSpec(("model", "data"))),
        (PartitionSpec(None), (9,), PartitionSpec(None)),  # by the replicas alone nothing is spread
    ],
)
def test_where_state_is_spread_over_two_axes(
    spec: Any, shape: tuple[int, ...], spread: Any
) -> None:
    assert spread_over_data(spec, shape, {"replica": 3, "data": 4}) == spread


def test_state_is_not_spread_over_a_single_group() -> None:
    assert spread_over_data(PartitionSpec(), (64,), {"data": 1}) == PartitionSpec()


@pytest.mark.parametrize(
    ("groups", "local", "expected"),
    [
        (144, 8, 16),
        (6, 6, 2),
        (12, 6, 2),
        (24, 8, 8),
        (16, 8, 16),
        (9, 1, 1),
        (6, 3, 1),
        (24, 12, 4),
    ],
)
def test_over_how_many_neighbours_state_is_spread(groups: int, local: int, expected: int) -> None:
    assert choose_shard_count(groups, local) == expected


@pytest.mark.parametrize(
    ("count", "each", "split", "shape"),
    [
        (18, 8, 1, {"replica": 9, "data": 16, "model": 1}),
        (1, 6, 1, {"replica": 3, "data": 2, "model": 1}),
        (2, 6, 2, {"data": 6, "model": 2}),
        (3, 8, 2, {"replica": 3, "data": 4, "model": 2}),
        (4, 8, 1, {"data": 32, "model": 1}),
        (3, 8, 8, {"data": 3, "model": 8}),
    ],
)
def test_with_fsdp_groups_are_replicas_of_a_power_of_two(
    count: int, each: int, split: int, shape: dict[str, int]
) -> None:
    devices = machines(count, each)
    partitioner = PjitPartitioner(split, devices=devices, fsdp=True)
    assert dict(partitioner.mesh.shape) == shape
    assert (
        partitioner.mesh.devices.ravel().tolist() == devices
    )  # a batch's rows lie where they lie without it
    assert partitioner.data_mesh_size == len(devices) // split
    for host in range(count):  # a block of the mesh, as loading data wants it
        mine = np.vectorize(lambda device, host=host: device.process_index == host)(
            partitioner.mesh.devices
        )
        block = np.ix_(*(np.unique(places) for places in mine.nonzero()))
        assert mine[block].all()


def test_rules_of_a_batch_follow_the_axes_and_others_do_not() -> None:
    rules = standard_logical_axis_rules(parameter_partitioning_dims=2)
    found = dict(
        PjitPartitioner(
            1, devices=machines(18, 8), fsdp=True, logical_axis_rules=rules
        ).logical_axis_rules
    )
    assert (found["batch"], found["embed"], found["mlp"]) == (("replica", "data"), "data", "model")


@pytest.mark.parametrize(
    ("devices", "fsdp", "kernel"),
    [
        (machines(18, 8), True, PartitionSpec("data", "model")),
        (machines(1, 6), True, PartitionSpec("data", "model")),
        (machines(4, 1), True, PartitionSpec("data", "model")),
        (machines(18, 8), False, PartitionSpec(None, "model")),
        (machines(1, 5), True, PartitionSpec(None, "model")),
    ],
    ids=["144", "6", "4", "without", "5"],
)
def test_a_train_state_with_fsdp(
    devices: Any,
    fsdp: bool,
    kernel: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A kernel of 16 times 4; where nothing can be spread, a line says so."""
    log.forget_shown()
    model = train_states.Model(16)
    state = train_state.FlaxOptimTrainState.create(
        model.optimizer_def, model.get_initial_variables()
    )
    axes = PjitPartitioner(1, devices=devices, fsdp=fsdp).get_mesh_axes(state)
    assert axes.params["dense"]["kernel"] == kernel
    assert axes.state_dict()["state"]["param_states"]["1"]["0"]["mu"]["dense"]["kernel"] == kernel
    assert ("FSDP=1 changes nothing" in capsys.readouterr().err) == (fsdp and "data" not in kernel)


def test_a_parameter_that_does_not_divide_is_refused_before_anything_compiles() -> None:
    model = train_states.Model(16)
    state = train_state.FlaxOptimTrainState.create(
        model.optimizer_def, model.get_initial_variables()
    )
    names = ("dense/kernel", "(16, 4)", "8 devices")
    partitioner = PjitPartitioner(8, devices=machines(1, 8))
    with errors.expect_user_error(
        errors.INVALID, where="TP_SIZE", value=8, names=names, remedy="1, 2, 4"
    ):
        partitioner.get_mesh_axes(state)
    PjitPartitioner(4, devices=machines(1, 8)).get_mesh_axes(state)


@pytest.mark.parametrize(
    ("field", "size"), [("num_heads", 6), ("mlp_dim", 1026), ("vocab_size", 385)]
)
def test_a_network_that_does_not_divide_is_refused(field: str, size: int) -> None:
    partitioner = PjitPartitioner(4, devices=machines(1, 8))
    fields: dict[str, Any] = {"vocab_size": 384, "num_heads": 8, "mlp_dim": 1024, field: size}
    check_network_sizes(T5Config(**{**fields, field: 4 * size}), partitioner)
    with errors.expect_user_error(
        errors.INVALID, where="TP_SIZE", value=4, names=(field, str(size))
    ):
        check_network_sizes(T5Config(**fields), partitioner)
    rules = [(name, None) for name, _ in standard_logical_axis_rules()]
    whole = PjitPartitioner(4, devices=machines(1, 8), logical_axis_rules=rules)
    check_network_sizes(T5Config(**fields), whole)
    check_network_sizes("another network's", partitioner)
