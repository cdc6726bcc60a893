"""How a train state is laid out over devices: upstream's rules over a mesh of data times model,
with the optimizer's state over both.

A dimension of a parameter is a multiple of some power of two, and seldom of 9. So that the
optimizer's state can be spread over 144 groups of devices, they become 9 replicas of 16: the batch
lies over both axes, and each array over as much of them as one of its dimensions divides by.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh, PartitionSpec
from t5x import partitioning
from t5x.partitioning import standard_logical_axis_rules

from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import suggest_common_divisors
from rosetta.nn import fallback_notice
from rosetta.nn.mesh_axes import DATA, MODEL, REPLICA, list_axis_names
from rosetta.t5x.run.model_config import T5Config, is_whole_number

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

__all__ = ["PjitPartitioner", "standard_logical_axis_rules"]

SETTING = "TP_SIZE (num_partitions)"


def list_tensor_parallel_sizes(devices: int, local: int) -> list[int]:
    """Return the tensor-parallel sizes that fit: divisors of a machine's devices, and multiples of
    them that divide all.
    """
    return [
        size
        for size in range(1, devices + 1)
        if devices % size == 0 and (local % size == 0 or size % local == 0)
    ]


def check_network_sizes(network: Any, partitioner: PjitPartitioner) -> None:
    """Raise UserError where a size of the network does not divide over the devices that share a
    model.

    Args:
      network: a T5Config, or another network's configuration, of which nothing is known.
      partitioner: the run's.
    """
    if not isinstance(network, T5Config):
        return
    parts = int(partitioner.mesh.shape[MODEL])
    for name, axis in (("num_heads", "heads"), ("mlp_dim", "mlp"), ("vocab_size", "vocab")):
        over = next((rule[1] for rule in partitioner.logical_axis_rules if rule[0] == axis), None)
        size = int(getattr(network, name))
        if over == MODEL and size % parts:
            raise _make_uneven_error(f"{name} is {size}", size, parts)


def _make_uneven_error(what: str, size: int, parts: int) -> UserError:
    return UserError(
        f"{what}, which does not divide over {parts} devices",
        SETTING,
        suggest_common_divisors(size),
        kind=INVALID,
        value=parts,
    )


def choose_shard_count(groups: int, local: int) -> int:
    """Return over how many neighbours an axis of its own is to spread state: the largest power of
    two that divides the groups of devices.

    Of it or in it are whole machines, with `local` groups each, so that what a machine has is a
    block of the mesh.
    """
    power = groups & -groups
    while power % local and local % power:
        power //= 2
    return power


class PjitPartitioner(partitioning.PjitPartitioner):
    """Upstream's class of this name, the same on CPUs as on GPUs.

    Args:
      num_partitions: devices over which one model is split (tensor parallelism).
      fsdp: keep each device's share of the optimizer's state only, over the data axes as well.
        Checkpoints do not depend on it.
      devices: the mesh's devices; default: all of the process's backend.
      Others as upstream's; with model_parallel_submesh the mesh is upstream's, too.
    """

    def __init__(
        self,
        num_partitions: int | None = None,
        model_parallel_submesh: Any = None,
        *,
        fsdp: bool = False,
        devices: Any = None,
        **others: Any,
    ) -> None:
        if not model_parallel_submesh and not is_whole_number(num_partitions, 1):
            raise UserError(
                f"it is {num_partitions!r}",
                SETTING,
                "give a whole number from 1 on",
                kind=INVALID,
                value=num_partitions,
            )
        super().__init__(num_partitions, model_parallel_submesh, **others)
        self._data_axis: Any
        self._logical_axis_rules: Any
        self._groups: tuple[int, ...]
        self._fsdp = fsdp
        self._devices = devices
        if model_parallel_submesh:
            return
        found = self._found()
        local = len({each.id for each in found if each.process_index == found[0].process_index})
        if num_partitions not in list_tensor_parallel_sizes(len(found), local):
            sizes = ", ".join(map(str, list_tensor_parallel_sizes(len(found), local)))
            raise UserError(
                (
                    f"a model is not split {num_partitions}-fold over {len(found)} device(s), "
                    f"{local} a process"
                ),
                SETTING,
                f"choose one of: {sizes}",
                kind=INVALID,
                value=num_partitions,
            )
        groups = len(found) // self._num_partitions
        self._groups, apart = (
            (groups,),
            choose_shard_count(groups, max(1, local // self._num_partitions)),
        )
        if fsdp and 1 < apart < groups and self._data_axis == DATA and not self._ici_mesh_shape:
            self._groups, self._data_axis = (groups // apart, apart), (REPLICA, DATA)
            self._logical_axis_rules = tuple(
                (name, self._data_axis if name == "batch" else axis)
                for name, axis in self._logical_axis_rules
            )

    def _found(self) -> list[Any]:
        return (
            list(self._devices)
            if self._devices is not None
            else sorted(jax.devices(self._backend), key=lambda each: (each.process_index, each.id))
        )

    @functools.cached_property
    def mesh(self) -> Mesh:
        """Data times model, neighbours on one machine sharing a model; with `fsdp`, replica times
        data times model where that spreads more.
        """
        if self._model_parallel_submesh or self._ici_mesh_shape:
            return super().mesh
        axes = (REPLICA, DATA, MODEL)[-len(self._groups) - 1 :]
        return Mesh(np.asarray(self._found()).reshape(*self._groups, self._num_partitions), axes)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The mesh's axes that a batch lies over, the slowest first."""
        return list_axis_names(self._data_axis)

    @property
    def _sizes(self) -> dict[str, int]:
        return {axis: self.mesh.shape[axis] for axis in self.data_axes}

    def get_data_layout(self, batch_size: int | None = None, host_index: int | None = None) -> Any:
        """See upstream; UserError where the batch does not divide."""
        if batch_size and batch_size % self.data_mesh_size:
            below = batch_size // self.data_mesh_size * self.data_mesh_size
            near = ", ".join(str(each) for each in (below, below + self.data_mesh_size) if each)
            raise UserError(
                (
                    f"a batch of {batch_size} does not divide over {self.data_mesh_size} groups "
                    "of devices"
                ),
                "batch_size",
                f"give a multiple of {self.data_mesh_size}: {near}",
                kind=INVALID,
                value=batch_size,
            )
        return super().get_data_layout(batch_size, host_index)

    def get_mesh_axes(self, train_state: Any) -> Any:
        """Return the layout of a train state; with `fsdp`, the optimizer's state lies over the data
        axes as well, where a dimension divides.
        """
        axes = super().get_mesh_axes(train_state)
        shapes = traverse_util.flatten_dict(
            train_state.state_dict(), keep_empty_nodes=True, sep="/"
        )
        flat = traverse_util.flatten_dict(axes.state_dict(), keep_empty_nodes=True, sep="/")
        for name, spec in flat.items():
            shape = getattr(shapes.get(name), "shape", None)
            self._refuse_uneven_array(name, spec, shape or ())
            if spec is None and shape == ():
                # Without a layout, T5X restores a counter in the parameters' type: float32 is exact
                # up to 2**24 only, bfloat16 to 256.
                flat[name] = PartitionSpec()
            elif self._fsdp and name.startswith("state/param_states/"):
                flat[name] = spread_over_data(spec, shape or (), self._sizes)
        if (
            self._fsdp
            and math.prod(self._sizes.values()) > 1
            and not any(
                isinstance(spec, PartitionSpec) and _uses_axes(spec, self._sizes)
                for spec in flat.values()
            )
        ):
            among = self._sizes[self.data_axes[-1]]
            fallback_notice.warn_once(
                "FSDP=1 changes nothing: the optimizer's state stays whole on each device",
                f"no dimension of a parameter divides by {among}; use a power of two of GPUs",
            )
        return axes.restore_state(traverse_util.unflatten_dict(flat, sep="/"))

    def _refuse_uneven_array(self, name: str, spec: Any, shape: tuple[int, ...]) -> None:
        """Raise UserError where a dimension of a parameter does not divide over the devices that
        share it: JAX refuses such an array when the step is compiled.
        """
        if not isinstance(spec, PartitionSpec) or not name.startswith("target/"):
            return
        for axes, size in zip(spec, shape, strict=False):
            parts = math.prod(self.mesh.shape[axis] for axis in list_axis_names(axes))
            if size % parts:
                array = name.removeprefix("target/")
                raise _make_uneven_error(f"{array} has the shape {shape} with {size}", size, parts)

    def over_data(self, axes: Any, params: Any) -> Any:
        """Return for each parameter, as a PartitionSpec of data axes alone, how `fsdp` spreads its
        optimizer's state over them.

        Args:
          axes: the parameters' own layout, a tree of PartitionSpec or None.
          params: arrays or their shapes, in the same tree.
        """

        def spread(leaf: Any, spec: Any) -> PartitionSpec:
            whole = spread_over_data(spec, leaf.shape, self._sizes) if self._fsdp else None
            return PartitionSpec(
                *(part if _uses_axes([part], self._sizes) else None for part in whole or ())
            )

        return jax.tree.map(spread, params, axes)


def _uses_axes(spec: Iterable[Any], axes: Container[str]) -> bool:
    return any(name in axes for part in spec for name in list_axis_names(part))


def spread_over_data(spec: Any, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Any:
    """Return a layout with data axes added to a dimension that has room for them: free, and
    divisible by their sizes.

    It is all of the axes if a dimension divides by them together, else the faster ones; and of such
    dimensions the largest.

    Args:
      spec: the layout so far, a PartitionSpec or None.
      shape: of the array.
      sizes: of the axes that a batch lies over, the slowest first.
    """
    if not isinstance(spec, PartitionSpec) or not shape or _uses_axes(spec, sizes):
        return spec
    parts = [*spec, *[None] * (len(shape) - len(spec))]
    for chosen in (tuple(sizes)[first:] for first in range(len(sizes))):
        among = math.prod(sizes[axis] for axis in chosen)
        free = [
            index for index, part in enumerate(parts) if part is None and shape[index] % among == 0
        ]
        if free and among > 1:
            parts[max(free, key=lambda index: shape[index])] = (
                chosen[0] if len(chosen) == 1 else chosen
            )
            return PartitionSpec(*parts)
    return spec
