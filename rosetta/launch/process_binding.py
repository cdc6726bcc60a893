"""Which cores and network cards are near a process's GPUs; the process is kept on them before it
becomes the trainer. ROSETTA_BIND=0: neither.

Cores: those of the NUMA node of its GPU, for one process a GPU; what it allocates is then in that
node's memory, as Linux gives pages where they are first touched. Network cards: NCCL_IB_HCA, the
same list for all processes of a node, since NCCL compares what they found; on part of a node those
beside the GPUs in use.
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
_SLURM_GPU_VARIABLES = (
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
)  # of the node's, where CUDA_VISIBLE_DEVICES does not say it


@dataclass(frozen=True)
class Gpu:
    """A card: its number and name as the driver has them, and its place: 0000:07:00.0."""

    number: int
    name: str
    address: str


@dataclass(frozen=True)
class Binding:
    """What is near: cores (empty: all, or not known), variables, and a line about both, "" where
    nothing is changed.
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
    """Return what is near the GPUs of this process.

    Args:
      gpus: all that the driver shows.
      environment: of the process; CUDA_VISIBLE_DEVICES, SLURM_LOCALID and what says how many
        processes are on this node.
      allowed: the cores it may have.
      root: of the file system that has /sys.

    Raises:
      UserError: ROSETTA_BIND is neither on nor off.
    """
    used = select_visible(gpus, environment)
    if not read_setting(environment, BIND_VARIABLE) or not used:
        return Binding(frozenset(), {}, "")
    local = parse_digits(environment.get("SLURM_LOCALID", ""))
    ours = used
    if slurm_job.count_node_tasks(environment) > 1:
        ours = [] if local is None else used[local : local + 1]
    spaces = [_read_near_cores(root, gpu) for gpu in ours]
    every = frozenset(allowed)
    cores = frozenset[int]().union(*spaces) & every if spaces and all(spaces) else frozenset()
    cores = frozenset() if cores == every else cores
    cards = [] if HCA_VARIABLE in environment else _find_near_network_cards(root, used)
    env = {HCA_VARIABLE: f"={','.join(cards)}"} if cards else {}
    parts = [f"cores {_format_numbers(cores)}"] if cores else []
    parts += [f"{name}={value}" for name, value in env.items()]
    return Binding(
        cores,
        env,
        (
            f"near GPU {', '.join(str(gpu.number) for gpu in ours or used)}: {', '.join(parts)} "
            f"({BIND_VARIABLE}=0 leaves it to the system)"
        )
        if parts
        else "",
    )


def bind_process(environment: dict[str, str]) -> str:
    """Keep this process, and what it becomes, where its GPUs are; return what to say of it.

    Adds to its environment.
    """
    if asks_for_cpu(environment.get("JAX_PLATFORMS", "")):
        return ""
    found = choose_binding(list_gpus(), environment, os.sched_getaffinity(0))
    environment.update(found.env)
    if found.cores:
        os.sched_setaffinity(0, found.cores)
    return found.line


def list_gpus() -> list[Gpu]:
    """Return the cards that the driver shows; empty without one."""
    rows = re.findall(
        r"^(\d+), *(GPU-\S+), *([0-9A-Fa-f]{4,8}):([0-9A-Fa-f:.]+)$",
        gpu_query.query_nvidia_smi("index,uuid,pci.bus_id"),
        re.MULTILINE,
    )
    return [
        Gpu(int(number), name, f"{domain[-4:]}:{rest}".lower())
        for number, name, domain, rest in rows
    ]


def select_visible(found: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the cards in the order in which CUDA counts them.

    As in CUDA, the first name of no card ends the list.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        ids = next(
            (environment[name] for name in _SLURM_GPU_VARIABLES if environment.get(name)), ""
        )
        # With cgroups only a job's own are shown, with other numbers than Slurm's.
        named = (
            ids
            if ids and len(ids.split(",")) < len(found)
            else ",".join(str(gpu.number) for gpu in found)
        )
    used = list[Gpu]()
    for word in (each.strip() for each in named.split(",")):
        match = [
            gpu
            for gpu in found
            if word == str(gpu.number) or (word.startswith("GPU-") and gpu.name.startswith(word))
        ]
        if len(match) != 1:
            break
        used += match
    return used


def _read_near_cores(root: Path, gpu: Gpu) -> frozenset[int]:
    return _parse_numbers(_read_text(root / "sys/bus/pci/devices" / gpu.address / "local_cpulist"))


def _find_near_network_cards(root: Path, used: Sequence[Gpu]) -> list[str]:
    """RDMA devices on the NUMA nodes of these GPUs, with a port that works; empty where that is all
    of them, or not known.
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
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _parse_numbers(text: str) -> frozenset[int]:
    """Parse a list of numbers as Linux writes it (0-3,8); return an empty set if it is invalid."""
    found = set[int]()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _format_numbers(numbers: Iterable[int]) -> str:
    parts = list[list[int]]()
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
