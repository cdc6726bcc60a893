"""Choose the devices of a run, and give its processes the environment that selects them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rosetta.core import gpu_query, xla_flags
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.value_parsing import asks_for_cpu, parse_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu

_CPU_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class RequestedDevices(Protocol):
    """The devices that a run asks for on a node."""

    @property
    def gpus(self) -> int:
        """The number of GPUs of a node."""

    @property
    def processes(self) -> int:
        """The number of processes of a node."""


@dataclass(frozen=True)
class Machine:
    """The devices of this machine.

    Attributes:
      gpus: that nvidia-smi reports.
      platforms: the value of JAX_PLATFORMS for a run.
      missing_gpu: the error about a missing GPU; None if there is one, or none is needed.
      on_cpu: whether a run uses the CPU.
    """

    gpus: list[DetectedGpu]
    platforms: str
    missing_gpu: UserError | None
    on_cpu: bool

    def count_devices(self, environment: Mapping[str, str]) -> int:
        """Return how many devices a process with this environment sees."""
        return count_devices(self.gpus, environment, on_cpu=self.on_cpu)


def detect_machine(environment: Mapping[str, str]) -> Machine:
    """Return the devices of this machine, as a run with this environment uses them."""
    gpus = gpu_query.detect_gpus(environment)
    platforms, missing_gpu = gpu_query.select_jax_platforms_or_error(gpus, environment)
    return Machine(gpus, platforms, missing_gpu, asks_for_cpu(platforms))


def count_devices(
    gpus: Sequence[DetectedGpu], environment: Mapping[str, str], *, on_cpu: bool
) -> int:
    """Return how many devices a process sees: GPUs, or the CPU devices that XLA_FLAGS makes."""
    counts = _CPU_DEVICE_COUNT.findall(_read_xla_flags(environment))
    if not on_cpu:
        return max(len(gpus), 1)
    return int(counts[-1]) if counts else 1


def _read_xla_flags(environment: Mapping[str, str]) -> str:
    """Return the flags of XLA_FLAGS, which may be the path of a file of flags."""
    return xla_flags.join_flags(xla_flags.split_flags(environment.get("XLA_FLAGS", "")))


def select_devices(
    requested: RequestedDevices,
    gpus: Sequence[DetectedGpu],
    environment: Mapping[str, str],
    *,
    on_cpu: bool,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Select the devices that a run asks for.

    Args:
      requested: the run.
      gpus: of this machine.
      environment: of the run.
      on_cpu: whether the run uses the CPU.

    Returns:
      The environment that selects the devices, and notes for the user.

    Raises:
      UserError: the machine does not have so many devices.
    """
    available = count_devices(gpus, environment, on_cpu=on_cpu)
    where = f"NUM_GPUS={requested.gpus}"
    if requested.processes > 1:
        if not on_cpu and requested.gpus != requested.processes:
            raise UserError(
                f"Slurm started {requested.processes} processes, one for each GPU",
                where,
                "start one process for each GPU (srun --ntasks), or unset NUM_GPUS",
                kind=CONFLICT,
                value=requested.processes,
            )
        return dict(environment), ()
    if available == requested.gpus or (not on_cpu and not gpus):
        return dict(environment), ()
    if on_cpu:
        return _make_cpu_devices(requested.gpus, available, environment, where)
    if requested.gpus > available:
        raise UserError(
            f"{available} GPU(s) are visible",
            where,
            f"give at most {available}",
            kind=CONFLICT,
            value=available,
        )
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible:
        selected = ",".join(parse_list("CUDA_VISIBLE_DEVICES", visible)[: requested.gpus])
    else:
        selected = ",".join(map(str, range(requested.gpus)))
    note = f"{requested.gpus} of {available} GPUs are used (CUDA_VISIBLE_DEVICES={selected})"
    return {**environment, "CUDA_VISIBLE_DEVICES": selected}, (note,)


def _make_cpu_devices(
    count: int, available: int, environment: Mapping[str, str], where: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Let XLA make so many CPU devices; see select_devices."""
    flags = _read_xla_flags(environment)
    if _CPU_DEVICE_COUNT.search(flags):
        raise UserError(
            f"XLA_FLAGS makes {available} CPU device(s)",
            where,
            "make both the same",
            kind=CONFLICT,
            value=available,
        )
    flags = f"{flags} --xla_force_host_platform_device_count={count}".strip()
    return {**environment, "XLA_FLAGS": flags}, (f"the CPU stands in for {count} devices",)
