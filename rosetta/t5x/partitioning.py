"""How a train state is laid out over devices: upstream's rules over a mesh of data times model, with the optimizer's state over both."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import Mesh, PartitionSpec
from t5x import partitioning
from t5x.partitioning import standard_logical_axis_rules

from rosetta.errors import UserError
from rosetta.nn import route

__all__ = ["PjitPartitioner", "standard_logical_axis_rules"]


def fitting(devices: int, local: int) -> list[int]:
    """Return the tensor-parallel sizes that fit: divisors of a machine's devices, and multiples of them that divide all."""
    return [size for size in range(1, devices + 1) if devices % size == 0 and (local % size == 0 or size % local == 0)]


class PjitPartitioner(partitioning.PjitPartitioner):
    """Upstream's class of this name, the same on CPUs as on GPUs.

    Args:
      num_partitions: devices over which one model is split (tensor parallelism).
      fsdp: keep each device's share of the optimizer's state only, over the data axis as well. Checkpoints do not depend on it.
      devices: the mesh's devices; default: all of the process's backend.
      Others as upstream's; with model_parallel_submesh the mesh is upstream's, too.
    """

    def __init__(self, num_partitions: int | None = None, model_parallel_submesh: Any = None, *, fsdp: bool = False, devices: Any = None, **others: Any) -> None:
        super().__init__(num_partitions, model_parallel_submesh, **others)
        self._fsdp = fsdp
        self._devices = devices
        if num_partitions and not model_parallel_submesh:
            found = self._found()
            local = len({each.id for each in found if each.process_index == found[0].process_index})
            if num_partitions not in fitting(len(found), local):
                sizes = ", ".join(map(str, fitting(len(found), local)))
                raise UserError(f"a model is not split {num_partitions}-fold over {len(found)} device(s), {local} a process", "TP_SIZE (num_partitions)", f"choose one of: {sizes}")

    def _found(self) -> list[Any]:
        return list(self._devices) if self._devices is not None else sorted(jax.devices(self._backend), key=lambda each: (each.process_index, each.id))

    @functools.cached_property
    def mesh(self) -> Mesh:
        """Data times model, neighbours on one machine sharing a model."""
        if self._model_parallel_submesh or self._ici_mesh_shape:
            return super().mesh
        found = self._found()
        return Mesh(np.asarray(found).reshape(-1, self._num_partitions), ("data", "model"))

    def get_data_layout(self, batch_size: int | None = None, host_index: int | None = None) -> Any:
        """See upstream; UserError where the batch does not divide."""
        if batch_size and batch_size % self.data_mesh_size:
            below = batch_size // self.data_mesh_size * self.data_mesh_size
            near = ", ".join(str(each) for each in (below, below + self.data_mesh_size) if each)
            raise UserError(f"a batch of {batch_size} does not divide over {self.data_mesh_size} groups of devices", "batch_size", f"give a multiple of {self.data_mesh_size}: {near}")
        return super().get_data_layout(batch_size, host_index)

    def get_mesh_axes(self, train_state: Any) -> Any:
        """Return the layout of a train state; with `fsdp`, the optimizer's state lies over the data axis as well, where a dimension divides."""
        axes = super().get_mesh_axes(train_state)
        sizes = dict(self.mesh.shape)
        shapes = traverse_util.flatten_dict(train_state.state_dict(), keep_empty_nodes=True, sep="/")
        flat = traverse_util.flatten_dict(axes.state_dict(), keep_empty_nodes=True, sep="/")
        for name, spec in flat.items():
            shape = getattr(shapes.get(name), "shape", None)
            if spec is None and shape == ():
                # Without a layout, T5X restores a counter in the parameters' type: float32 is exact up to 2**24 only, bfloat16 to 256.
                flat[name] = PartitionSpec()
            elif self._fsdp and name.startswith("state/param_states/"):
                flat[name] = spread_over_data(spec, shape or (), sizes)
        if self._fsdp and sizes["data"] > 1 and not any(isinstance(spec, PartitionSpec) and "data" in spec for spec in flat.values()):
            route.say("FSDP=1 changes nothing: the optimizer's state stays whole on each device", f"no dimension of a parameter divides by {sizes['data']}; use a power of two of GPUs")
        return axes.restore_state(traverse_util.unflatten_dict(flat, sep="/"))

    def data_dimensions(self, axes: Any, params: Any) -> Any:
        """Return for each parameter the dimension in which `fsdp` spreads its optimizer's state over the data axis, -1 for none.

        Args:
          axes: the parameters' own layout, a tree of PartitionSpec or None.
          params: arrays or their shapes, in the same tree.
        """
        sizes = dict(self.mesh.shape)

        def dimension(leaf: Any, spec: Any) -> int:
            spread = spread_over_data(spec, leaf.shape, sizes) if self._fsdp else None
            return tuple(spread).index("data") if spread is not None and "data" in spread else -1

        return jax.tree.map(dimension, params, axes)


def spread_over_data(spec: Any, shape: tuple[int, ...], sizes: dict[str, int]) -> Any:
    """Return a layout with the data axis added to the largest dimension that has room for it: free, and divisible by the axis's size.

    Args:
      spec: the layout so far, a PartitionSpec or None.
      shape: of the array.
      sizes: of the mesh's axes.
    """
    if not isinstance(spec, PartitionSpec) or not shape or sizes["data"] == 1 or "data" in spec:
        return spec
    names = [*spec, *[None] * (len(shape) - len(spec))]
    free = [index for index, name in enumerate(names) if name is None and shape[index] % sizes["data"] == 0]
    if not free:
        return spec
    best = max(free, key=lambda index: shape[index])
    return PartitionSpec(*("data" if index == best else name for index, name in enumerate(names)))
