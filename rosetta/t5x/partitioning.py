"""The layout of a train state over the devices, by T5X's rules; gin files name PjitPartitioner.

The mesh has a data axis and a model axis. With FSDP, kernels and embeddings, and the optimizer's
state that belongs to them, are sharded over the data axis, too. A dimension of a parameter is a
multiple of some power of two, but seldom of 9. With 144 groups of devices, the data axis is
therefore divided into 9 replicas of 16 groups. The batch is divided over both axes. Each sharded
array is divided over as many of the groups as one of its dimensions divides by. The network gathers
the parameters where it uses them, see rosetta.nn.sharded_parameters.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import traverse_util
from flax.linen import partitioning as flax_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from t5x import partitioning
from t5x.partitioning import standard_logical_axis_rules

from rosetta.core.errors import INVALID, UserError
from rosetta.core.value_parsing import suggest_common_divisors
from rosetta.nn import current_mesh, fallback_notice, sharded_parameters
from rosetta.nn.mesh_axes import DATA, MODEL, REPLICA, list_axis_names
from rosetta.nn.sharded_parameters import SHARDED_NAMES, Layout
from rosetta.t5x.run.model_config import T5Config, is_whole_number
from rosetta.t5x.run.shard_count import choose_shard_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

__all__ = ["PjitPartitioner", "standard_logical_axis_rules"]

SETTING = "TP_SIZE (num_partitions)"


def list_tensor_parallel_sizes(devices: int, local: int) -> list[int]:
    """Return the sizes of tensor parallelism that are possible.

    They divide the devices of a process, or are a multiple of those that divides all devices.

    Args:
      devices: the devices of the run.
      local: the devices of a process.
    """
    return [
        size
        for size in range(1, devices + 1)
        if devices % size == 0 and (local % size == 0 or size % local == 0)
    ]


def check_network_sizes(network: Any, partitioner: PjitPartitioner) -> None:
    """Check that the sizes of the network divide over the devices that share a model.

    Args:
      network: a T5Config; another network's configuration is not checked.
      partitioner: the run's partitioner.

    Raises:
      UserError: a size does not divide.
    """
    if not isinstance(network, T5Config):
        return
    parts = int(partitioner.mesh.shape[MODEL])
    for name, axis in (("num_heads", "heads"), ("mlp_dim", "mlp"), ("vocab_size", "vocab")):
        rules = (rule[1] for rule in partitioner.logical_axis_rules if rule[0] == axis)
        mesh_axis = next(rules, None)
        size = int(getattr(network, name))
        if mesh_axis == MODEL and size % parts:
            raise _make_uneven_error(f"{name} is {size}", size, parts)


def _make_uneven_error(problem: str, size: int, parts: int) -> UserError:
    """Return the error for a size that does not divide over the devices that share it."""
    return UserError(
        f"{problem}, which does not divide over {parts} devices",
        SETTING,
        suggest_common_divisors(size),
        kind=INVALID,
        value=parts,
    )


class PjitPartitioner(partitioning.PjitPartitioner):
    """T5X's class of this name, which makes the same mesh on CPUs as on GPUs.

    Args:
      num_partitions: the devices over which one model is split (tensor parallelism).
      model_parallel_submesh: as of T5X's class. If it is set, the mesh is T5X's.
      fsdp: shard parameters and the optimizer's state over the data axes, too. Checkpoints do not
        depend on it.
      devices: the devices of the mesh; default: all of the process's backend.
      **others: as of T5X's class.

    Raises:
      UserError: models cannot be split over so many devices.
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
                f"{num_partitions!r} is not a valid number of devices",
                SETTING,
                "give a whole number of at least 1",
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
        mesh_devices = self._list_devices()
        count = len(mesh_devices)
        process = mesh_devices[0].process_index
        local = len({device.id for device in mesh_devices if device.process_index == process})
        if num_partitions not in list_tensor_parallel_sizes(count, local):
            sizes = ", ".join(map(str, list_tensor_parallel_sizes(count, local)))
            raise UserError(
                (
                    f"a model cannot be split over {num_partitions} of {count} device(s), "
                    f"{local} of them in a process"
                ),
                SETTING,
                f"choose one of: {sizes}",
                kind=INVALID,
                value=num_partitions,
            )
        groups = count // self._num_partitions
        self._groups = (groups,)
        shard_count = choose_shard_count(groups, max(1, local // self._num_partitions))
        has_default_mesh = self._data_axis == DATA and not self._ici_mesh_shape
        if fsdp and 1 < shard_count < groups and has_default_mesh:
            self._groups = (groups // shard_count, shard_count)
            self._data_axis = (REPLICA, DATA)
            self._logical_axis_rules = tuple(
                (name, self._data_axis if name == "batch" else axis)
                for name, axis in self._logical_axis_rules
            )

    def _list_devices(self) -> list[Any]:
        """Return the devices of the mesh, those of a process next to each other."""
        if self._devices is not None:
            return list(self._devices)
        devices = jax.devices(self._backend)
        return sorted(devices, key=lambda device: (device.process_index, device.id))

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The mesh of data times model, in which neighbouring devices share a model.

        With `fsdp` it is replica times data times model, if that spreads the state over more
        devices.
        """
        if self._model_parallel_submesh or self._ici_mesh_shape:
            return super().mesh
        axes = (REPLICA, DATA, MODEL)[-len(self._groups) - 1 :]
        devices = np.asarray(self._list_devices())
        return Mesh(devices.reshape(*self._groups, self._num_partitions), axes)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that divide a batch, the slowest first."""
        return list_axis_names(self._data_axis)

    @property
    def _data_axis_sizes(self) -> dict[str, int]:
        """The sizes of the data axes, the slowest first."""
        return {axis: self.mesh.shape[axis] for axis in self.data_axes}

    def get_data_layout(self, batch_size: int | None = None, host_index: int | None = None) -> Any:
        """Return T5X's layout of a batch over the processes.

        Args:
          batch_size: the rows of the global batch.
          host_index: as of T5X's method.

        Raises:
          UserError: the batch does not divide over the groups of devices.
        """
        if batch_size and batch_size % self.data_mesh_size:
            below = batch_size // self.data_mesh_size * self.data_mesh_size
            multiples = [below, below + self.data_mesh_size] if below else [self.data_mesh_size]
            nearest = ", ".join(map(str, multiples))
            raise UserError(
                (
                    f"a batch of {batch_size} does not divide over {self.data_mesh_size} groups "
                    "of devices"
                ),
                "batch_size",
                f"give a multiple of {self.data_mesh_size}: {nearest}",
                kind=INVALID,
                value=batch_size,
            )
        return super().get_data_layout(batch_size, host_index)

    def get_mesh_axes(self, train_state: Any) -> Any:
        """Return the layout of a train state.

        With `fsdp`, kernels and embeddings, and the arrays of the optimizer's state that belong to
        them, are divided over the data axes, too, if one of their dimensions divides.

        Raises:
          UserError: a parameter does not divide over the devices that share it.
        """
        axes = super().get_mesh_axes(train_state)
        shapes = traverse_util.flatten_dict(
            train_state.state_dict(), keep_empty_nodes=True, sep="/"
        )
        flat = traverse_util.flatten_dict(axes.state_dict(), keep_empty_nodes=True, sep="/")
        for name, spec in flat.items():
            shape = getattr(shapes.get(name), "shape", None)
            self._check_array(name, spec, shape or ())
            if spec is None and shape == ():
                # Without a layout, T5X restores a counter in the parameters' type. Float32 is exact
                # only up to 2**24, bfloat16 up to 256.
                flat[name] = PartitionSpec()
            elif self._fsdp and _is_sharded(name.split("/")):
                flat[name] = spread_over_data(spec, shape or (), self._data_axis_sizes)
        specs = [spec for spec in flat.values() if isinstance(spec, PartitionSpec)]
        is_spread = any(_uses_axes(spec, self._data_axis_sizes) for spec in specs)
        if self._fsdp and math.prod(self._data_axis_sizes.values()) > 1 and not is_spread:
            ways = self._data_axis_sizes[self.data_axes[-1]]
            fallback_notice.warn_once(
                "FSDP=1 changes nothing: the train state stays whole on each device",
                f"no dimension of a parameter divides by {ways}; use a power of two of GPUs",
            )
        return axes.restore_state(traverse_util.unflatten_dict(flat, sep="/"))

    def _check_array(self, name: str, spec: Any, shape: tuple[int, ...]) -> None:
        """Raise UserError if a dimension of a parameter does not divide over the devices that
        share it. JAX would refuse such an array only when the step is compiled.
        """
        if not isinstance(spec, PartitionSpec) or not name.startswith("target/"):
            return
        for axes, size in zip(spec, shape, strict=False):
            parts = math.prod(self.mesh.shape[axis] for axis in list_axis_names(axes))
            if size % parts:
                array = name.removeprefix("target/")
                raise _make_uneven_error(f"{array} has the shape {shape} with {size}", size, parts)

    def make_gradient_layout(self, axes: Any, params: Any) -> Any:
        """Return the layout of the gradients' sums: a tree of PartitionSpec with data axes only.

        It is the part of the optimizer state's layout that `fsdp` adds.

        Args:
          axes: the parameters' own layout, a tree of PartitionSpec or None.
          params: arrays or their shapes, in the same tree.
        """

        def spread(path: Any, leaf: Any, spec: Any) -> PartitionSpec:
            if not self._fsdp or not _is_sharded([str(getattr(key, "key", key)) for key in path]):
                return PartitionSpec()
            sizes = self._data_axis_sizes
            parts = spread_over_data(spec, leaf.shape, sizes) or ()
            return PartitionSpec(*(part if _uses_axes([part], sizes) else None for part in parts))

        return jax.tree_util.tree_map_with_path(spread, params, axes)

    def find_parameter_layout(self, axes: Sequence[str], shape: Sequence[int]) -> Layout | None:
        """Return the layouts of a kernel or an embedding.

        Args:
          axes: the logical names of its dimensions.
          shape: its shape.

        Returns:
          None if it is not sharded over the data axes.
        """
        gathered = flax_partitioning.logical_to_mesh_axes(tuple(axes), self.logical_axis_rules)
        sharded = spread_over_data(gathered, tuple(shape), self._data_axis_sizes)
        if sharded == gathered:
            return None
        return Layout(NamedSharding(self.mesh, sharded), NamedSharding(self.mesh, gathered))

    def partition(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return T5X's partitioned function, for which `rosetta.nn.current_mesh` is this mesh. With
        `fsdp`, it gathers the parameters that it uses.

        Args:
          fn: the function.
          *args: as of T5X's method.
          **kwargs: as of T5X's method.
        """
        find_layout = self.find_parameter_layout if self._fsdp else None

        @functools.wraps(fn)
        def on_mesh(*inputs: Any, **options: Any) -> Any:
            with current_mesh.use_mesh(self.mesh), sharded_parameters.use_layouts(find_layout):
                return fn(*inputs, **options)

        return super().partition(on_mesh, *args, **kwargs)


def _is_sharded(path: Sequence[str]) -> bool:
    """Return whether FSDP shards the array at a path of the train state: the names of its parents
    and its own. Other parameters, such as those of norms, are too small to gain from it.
    """
    return not SHARDED_NAMES.isdisjoint(path)


def _uses_axes(spec: Iterable[Any], axes: Collection[str]) -> bool:
    """Return whether a layout divides a dimension over one of the axes."""
    return any(not set(list_axis_names(part)).isdisjoint(axes) for part in spec)


def spread_over_data(spec: Any, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Any:
    """Return a layout with one more dimension divided over data axes.

    The dimension is not divided yet, and divides by the sizes of the axes. All data axes are used
    if a dimension divides by their product, otherwise the faster ones only. Of several dimensions,
    the largest is divided. If there is none, the layout is returned unchanged.

    Args:
      spec: the layout so far, a PartitionSpec or None.
      shape: the shape of the array.
      sizes: the sizes of the data axes, the slowest first.
    """
    if not isinstance(spec, PartitionSpec) or not shape or _uses_axes(spec, sizes):
        return spec
    parts = [*spec, *[None] * (len(shape) - len(spec))]
    for first in range(len(sizes)):
        chosen = tuple(sizes)[first:]
        ways = math.prod(sizes[axis] for axis in chosen)
        free = [
            index for index, part in enumerate(parts) if part is None and shape[index] % ways == 0
        ]
        if free and ways > 1:
            largest = max(free, key=lambda index: shape[index])
            parts[largest] = chosen[0] if len(chosen) == 1 else chosen
            return PartitionSpec(*parts)
    return spec
