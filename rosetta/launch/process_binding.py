"""Bind a process to the CPU cores and network cards near its GPUs, before it becomes the trainer.

ROSETTA_BIND=0 turns both off.

- Cores: those of the NUMA node of its GPU, if there is one process for each GPU. Its memory is then
  on that node too, because Linux takes a page from the node that first touches it.
- Network cards: NCCL_IB_HCA lists those beside the GPUs in use. The list is the same for all
  processes of a node, since NCCL compares what they found.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import gpu_query
from rosetta.core.value_parsing import asks_for_cpu, parse_digits
from rosetta.core.variables.setting_values import read_setting
from rosetta.doctor import slurm_job

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BIND_VARIABLE = "ROSETTA_BIND"
HCA_VARIABLE = "NCCL_IB_HCA"
# The GPUs of a job on this node; read if CUDA_VISIBLE_DEVICES is not set.
_SLURM_GPU_VARIABLES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True)
class Gpu:
    """A GPU: its number and UUID in the driver, and its PCI address, such as 0000:07:00.0."""

    number: int
    name: str
    address: str


@dataclass(frozen=True)
class Binding:
    """What a process is bound to.

    Attributes:
      cores: the CPU cores; empty for no change.
      env: the variables for the network cards.
      line: a note about both; "" for no change.
    """

    cores: frozenset[int]
    env: dict[str, str]
    line: str


def choose_binding(
    gpus: Sequence[Gpu],
    environment: Mapping[str, str],
    allowed: Iterable[int],
    root: Path = Path("/"),
) -> Binding:
    """Return the cores and network cards near the GPUs of this process.

    Args:
      gpus: all GPUs that the driver shows.
      environment: of the process: CUDA_VISIBLE_DEVICES, SLURM_LOCALID and the variables with the
        number of processes on this node.
      allowed: the cores that the process may use.
      root: of the file system that has /sys.

    Raises:
      UserError: ROSETTA_BIND is not a truth value.
    """
    visible = select_visible(gpus, environment)
    if not read_setting(environment, BIND_VARIABLE) or not visible:
        return Binding(frozenset(), {}, "")
    own = visible
    if slurm_job.count_node_tasks(environment) > 1:
        local_rank = parse_digits(environment.get("SLURM_LOCALID", ""))
        own = [] if local_rank is None else visible[local_rank : local_rank + 1]
    cores = _choose_cores(own, frozenset(allowed), root)
    cards = [] if HCA_VARIABLE in environment else _find_near_network_cards(root, visible)
    env = {HCA_VARIABLE: f"={','.join(cards)}"} if cards else {}
    parts = [f"cores {_format_numbers(cores)}"] if cores else []
    parts += [f"{name}={value}" for name, value in env.items()]
    line = ""
    if parts:
        numbers = ", ".join(str(gpu.number) for gpu in own or visible)
        line = f"near GPU {numbers}: {', '.join(parts)} ({BIND_VARIABLE}=0 leaves it to the system)"
    return Binding(cores, env, line)


def _choose_cores(gpus: Sequence[Gpu], allowed: frozenset[int], root: Path) -> frozenset[int]:
    """Return the allowed cores near these GPUs; empty if these are all, or are not known."""
    cores_of_gpus = [_read_near_cores(root, gpu) for gpu in gpus]
    if not cores_of_gpus or not all(cores_of_gpus):
        return frozenset()
    cores = frozenset[int]().union(*cores_of_gpus) & allowed
    return frozenset() if cores == allowed else cores


def bind_process(environment: dict[str, str]) -> str:
    """Bind this process, and the trainer that it becomes; return a note, "" for no change.

    Variables for the network cards are added to the environment.
    """
    if asks_for_cpu(environment.get("JAX_PLATFORMS", "")):
        return ""
    binding = choose_binding(list_gpus(), environment, os.sched_getaffinity(0))
    environment.update(binding.env)
    if binding.cores:
        os.sched_setaffinity(0, binding.cores)
    return binding.line


def list_gpus() -> list[Gpu]:
    """Return the GPUs that the driver shows; empty without a driver."""
    rows = re.findall(
        r"^(\d+), *(GPU-\S+), *([0-9A-Fa-f]{4,8}):([0-9A-Fa-f:.]+)$",
        gpu_query.query_nvidia_smi("index,uuid,pci.bus_id"),
        re.MULTILINE,
    )
    return [
        Gpu(int(number), name, f"{domain[-4:]}:{rest}".lower())
        for number, name, domain, rest in rows
    ]


def select_visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that a process may use, in CUDA's order.

    As in CUDA, the first name that matches no GPU ends the list.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        ids = next(
            (environment[name] for name in _SLURM_GPU_VARIABLES if environment.get(name)), ""
        )
        # With cgroups, the driver shows only the GPUs of the job, with other numbers than Slurm's.
        named = (
            ids
            if ids and len(ids.split(",")) < len(gpus)
            else ",".join(str(gpu.number) for gpu in gpus)
        )
    used = list[Gpu]()
    for word in map(str.strip, named.split(",")):
        match = [
            gpu
            for gpu in gpus
            if word == str(gpu.number) or (word.startswith("GPU-") and gpu.name.startswith(word))
        ]
        if len(match) != 1:
            break
        used += match
    return used


def _read_near_cores(root: Path, gpu: Gpu) -> frozenset[int]:
    """Return the cores of a GPU's NUMA node."""
    return _parse_numbers(_read_text(root / "sys/bus/pci/devices" / gpu.address / "local_cpulist"))


def _find_near_network_cards(root: Path, used: Sequence[Gpu]) -> list[str]:
    """Return the RDMA devices with a working port on the NUMA nodes of these GPUs.

    The list is empty if these are all devices, or if the NUMA nodes are not known.
    """
    there = sorted((root / "sys/class/infiniband").glob("*"))
    alive = [
        path
        for path in there
        if any("ACTIVE" in _read_text(state) for state in path.glob("ports/*/state"))
    ]
    nodes = {_read_text(root / "sys/bus/pci/devices" / gpu.address / "numa_node") for gpu in used}
    if not all(text.isdecimal() for text in nodes):  # -1: the firmware does not say
        return []
    beside = [path.name for path in alive if _read_text(path / "device/numa_node") in nodes]
    return [] if len(beside) == len(there) else beside


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _parse_numbers(text: str) -> frozenset[int]:
    """Parse a list of numbers as Linux writes it (0-3,8); return an empty set if it is invalid."""
    numbers = set[int]()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _format_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as Linux lists them: 0-3,8."""
    ranges = list[list[int]]()
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
