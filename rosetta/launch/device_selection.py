"""The devices that a process sees, and the environment in which a run has those that it was asked
to have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from rosetta.core import xla_flags
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.value_parsing import parse_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu

_CPU_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class RequestedDevices(Protocol):
    """A run: how many GPUs it has, and in how many processes."""

    @property
    def gpus(self) -> int:
        """The number of GPUs of a node."""

    @property
    def processes(self) -> int:
        """The number of processes of a node."""


def count_devices(
    found: Sequence[DetectedGpu], environment: Mapping[str, str], *, on_cpu: bool
) -> int:
    """Return how many devices a process sees: cards, or the CPU devices that XLA_FLAGS makes."""
    asked = _CPU_DEVICE_COUNT.findall(_read_xla_flags(environment))
    return int(asked[-1]) if on_cpu and asked else 1 if on_cpu else max(len(found), 1)


def _read_xla_flags(environment: Mapping[str, str]) -> str:
    """Return the flags of XLA_FLAGS, which may be the path of a file of flags."""
    return xla_flags.join_flags(xla_flags.split_flags(environment.get("XLA_FLAGS", "")))


def select_devices(
    given: RequestedDevices,
    found: Sequence[DetectedGpu],
    environment: Mapping[str, str],
    *,
    on_cpu: bool,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the environment in which the run has the devices it was asked to have, and what to say
    about it.

    Raises:
      UserError: there are not so many.
    """
    there = count_devices(found, environment, on_cpu=on_cpu)
    where = f"NUM_GPUS={given.gpus}"
    if given.processes > 1:
        if not on_cpu and given.gpus != given.processes:
            raise UserError(
                f"Slurm started {given.processes} processes, one a GPU",
                where,
                "start one process a GPU (srun --ntasks), or unset NUM_GPUS",
                kind=CONFLICT,
                value=given.processes,
            )
        return dict(environment), ()
    if there == given.gpus or (not on_cpu and not found):
        return dict(environment), ()
    if on_cpu:
        if _CPU_DEVICE_COUNT.search(_read_xla_flags(environment)):
            raise UserError(
                f"XLA_FLAGS makes {there} CPU device(s)",
                where,
                "make both the same",
                kind=CONFLICT,
                value=there,
            )
        flags = (
            f"{_read_xla_flags(environment)} --xla_force_host_platform_device_count={given.gpus}"
        ).strip()
        return {**environment, "XLA_FLAGS": flags}, (f"the CPU stands in for {given.gpus} devices",)
    if given.gpus > there:
        raise UserError(
            f"{there} GPU(s) are visible",
            where,
            f"give at most {there}",
            kind=CONFLICT,
            value=there,
        )
    named = environment.get("CUDA_VISIBLE_DEVICES")
    used = (
        ",".join(parse_list("CUDA_VISIBLE_DEVICES", named)[: given.gpus])
        if named
        else ",".join(map(str, range(given.gpus)))
    )
    return {**environment, "CUDA_VISIBLE_DEVICES": used}, (
        f"{given.gpus} of {there} GPUs are used (CUDA_VISIBLE_DEVICES={used})",
    )
