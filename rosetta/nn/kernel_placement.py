"""Where GPU kernels run that XLA cannot divide over devices.

Each device runs such a kernel on its own part of the arrays, under `shard_map` over all axes of the
mesh. Whether it can is known from the mesh before the step is traced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.linen import partitioning as flax_partitioning

from rosetta.core import gpus
from rosetta.core.gpu_query import parse_capability
from rosetta.nn.mesh_axes import list_axis_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jax.sharding import Mesh, PartitionSpec


@dataclass(frozen=True)
class Placement:
    """Where kernels run.

    Attributes:
        mesh: The mesh over which the features are divided; None if the kernels are traced for one
            device.
        axes: The axes of the mesh for each dimension of the features [.., .., features].
        interpret: Whether a CPU interprets the kernels.
    """

    mesh: Mesh | None
    axes: tuple[tuple[str, ...], ...]
    interpret: bool = False


def find_logical_axes(names: Sequence[str]) -> tuple[Any, ...]:
    """Return what splits each dimension by Flax's rules, as the entries of a PartitionSpec.

    Args:
        names: The logical names of the dimensions.
    """
    spec = flax_partitioning.logical_to_mesh_axes(tuple(names))
    return tuple(spec) if spec else (None,) * len(names)


def choose_placement(
    mesh: Mesh | None,
    shape: Sequence[int],
    spec: Sequence[Any],
    find_shape_problem: Callable[[int, int, int], str],
) -> tuple[Placement | None, str]:
    """Choose where a kernel runs, from the mesh and the features alone.

    Args:
        mesh: The mesh of the devices; None if it is not known.
        shape: The shape of the features, [.., .., features].
        spec: What splits each of the three dimensions, as the entries of a PartitionSpec.
        find_shape_problem: Returns why a device cannot compute its part, from the three sizes of
            the part; empty if it can.

    Returns:
        The placement and "", or None and why the kernels cannot run.
    """
    if mesh is None:
        return None, "the devices are not known"
    devices = list(mesh.devices.flat)
    on_cpu = any(device.platform == "cpu" for device in devices)
    if not on_cpu and not all(_has_fp8(device) for device in devices):
        return None, "a GPU without FP8"
    manual_axes = set(jax.sharding.get_abstract_mesh().manual_axes)
    if manual_axes and manual_axes != set(mesh.axis_names):
        return None, "GRADIENT_DTYPE and tensor parallelism"
    axes = tuple(() if manual_axes else list_axis_names(entry) for entry in spec)
    parts = [math.prod(mesh.shape[axis] for axis in dimension) for dimension in axes]
    if any(size % count for size, count in zip(shape, parts, strict=True)):
        return None, f"features of {tuple(shape)} do not divide over the devices"
    first, second, features = (size // count for size, count in zip(shape, parts, strict=True))
    if problem := find_shape_problem(first, second, features):
        return None, problem
    return Placement(None if manual_axes else mesh, axes, on_cpu), ""


def _has_fp8(device: Any) -> bool:
    """Return whether a device is a GPU of NVIDIA that has FP8."""
    capability = str(getattr(device, "compute_capability", ""))
    return gpus.FP8.supported_by(parse_capability(capability))


def run_on_mesh(
    placement: Placement,
    function: Callable[..., Any],
    inputs: tuple[PartitionSpec, ...],
    outputs: tuple[PartitionSpec, ...],
) -> Callable[..., Any]:
    """Return a function that each device of the mesh computes on its own part of the arrays.

    Args:
        placement: Where the function runs.
        function: The function for one device.
        inputs: The layouts of its arguments.
        outputs: The layouts of its results.
    """
    if placement.mesh is None:
        return function
    # Pallas cannot be traced with check_vma.
    mapped: Callable[..., Any] = jax.shard_map(
        function, mesh=placement.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
    )
    return mapped


def join_amaxes(amaxes: Any, dtype: Any) -> list[Any]:
    """Return the amax of each part, float32 [1], of its tiles on all devices.

    They are rounded as other amaxes are, to the type of the activations, so that XLA can compare
    them between the devices in one call with those.

    Args:
        amaxes: [.., .., parts].
        dtype: The type of the activations.
    """
    joined = jnp.max(amaxes.astype(dtype), axis=(0, 1)).astype(jnp.float32)
    return [joined[index : index + 1] for index in range(len(joined))]
