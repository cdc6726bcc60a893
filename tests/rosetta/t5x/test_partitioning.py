"""Which layouts fit, which do not and what is said of them, and where the optimizer's state goes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
pytest.importorskip("t5x.utils", reason=REASON)

from jax.sharding import PartitionSpec

from rosetta.errors import UserError
from rosetta.t5x import reduction
from rosetta.t5x.partitioning import PjitPartitioner, fitting, spread_over_data


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
    [(8, 8, [1, 2, 4, 8]), (1, 1, [1]), (6, 6, [1, 2, 3, 6]), (16, 8, [1, 2, 4, 8, 16]), (24, 8, [1, 2, 4, 8, 24]), (4, 1, [1, 2, 4])],
)
def test_which_splits_of_a_model_fit(devices: int, local: int, sizes: list[int]) -> None:
    assert fitting(devices, local) == sizes


def test_a_split_that_does_not_fit_names_those_that_do() -> None:
    with pytest.raises(UserError, match=r"not split 3-fold over 8 device\(s\), 8 a process; choose one of: 1, 2, 4, 8"):
        PjitPartitioner(3, devices=machines(1, 8))
    with pytest.raises(UserError, match="choose one of: 1, 2, 4, 8, 24"):
        PjitPartitioner(16, devices=machines(3, 8))  # two machines of three


@pytest.mark.parametrize("split", [1, 2, 8, 16])
def test_a_model_is_split_over_neighbours(split: int) -> None:
    """A model lies within a machine, or over whole ones, whatever the order in which JAX lists the devices."""
    mesh = PjitPartitioner(split, devices=machines(4, 8)).mesh
    assert dict(mesh.shape) == {"data": 32 // split, "model": split}
    for row in mesh.devices:
        hosts = [device.process_index for device in row]
        assert len(set(hosts)) == max(1, split // 8)
        assert [device.id for device in row] == list(range(row[0].id, row[0].id + split))


def test_a_batch_that_does_not_divide_names_those_that_do() -> None:
    partitioner = PjitPartitioner(2, devices=machines(1, 8))
    with pytest.raises(UserError, match="a batch of 10 does not divide over 4 groups of devices; give a multiple of 4: 8, 12"):
        partitioner.get_data_layout(10)
    with pytest.raises(UserError, match=r"give a multiple of 4: 4$"):
        partitioner.get_data_layout(3)


@pytest.mark.parametrize(
    ("spec", "shape", "spread"),
    [
        (PartitionSpec(None, "model"), (64, 32), PartitionSpec("data", "model")),
        (PartitionSpec("model"), (64, 32), PartitionSpec("model", "data")),
        (PartitionSpec(), (8, 64), PartitionSpec(None, "data")),  # the largest one
        (PartitionSpec(None, "model"), (6, 32), PartitionSpec(None, "model")),  # 6 does not divide by 4
        (PartitionSpec(None), (64,), PartitionSpec("data")),
        (PartitionSpec("data"), (64, 64), PartitionSpec("data")),
        (PartitionSpec(), (), PartitionSpec()),
        (None, (64,), None),
    ],
)
def test_where_state_is_spread_over_the_data_axis(spec: Any, shape: tuple[int, ...], spread: Any) -> None:
    assert spread_over_data(spec, shape, {"data": 4, "model": 2}) == spread


def test_nothing_is_spread_over_one() -> None:
    assert spread_over_data(PartitionSpec(), (64,), {"data": 1, "model": 2}) == PartitionSpec()


def test_what_gradients_cannot_be_added_up_in() -> None:
    partitioner = PjitPartitioner(1, devices=machines(1, 8))
    for fine in (None, "float32", "bfloat16"):
        reduction.check(fine, 1024.0, partitioner)
    with pytest.raises(UserError, match=r"gradient_dtype is 'float16'.*one of: float32, bfloat16"):
        reduction.check("float16", None, partitioner)
    with pytest.raises(UserError, match="a sum over tokens, not AVERAGE_PER_SEQUENCE"):
        reduction.check("bfloat16", "AVERAGE_PER_SEQUENCE", partitioner)
    split = PjitPartitioner(2, devices=machines(1, 8))
    reduction.check("bfloat16", None, split, "xla")
    with pytest.raises(UserError, match=r"place cudnn's attention inside it; .* ATTENTION=xla or TP_SIZE=1"):
        reduction.check("bfloat16", None, split, "cudnn")
