"""Check the limits of the kernel: shared memory, locked memory, open files and processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor.finding import BLOCKER, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# Bytes of /dev/shm. Docker gives 64 MiB, with which NCCL crashes. NVIDIA advises 1 GiB for its
# containers.
SHM_TOO_SMALL, SHM_TIGHT = 128 << 20, 1 << 30
# Bytes. With less, NCCL cannot register its buffers with the network card.
LEAST_LOCKED_MEMORY = 1 << 30
LEAST_OPEN_FILES, LEAST_PROCESSES = 4096, 4096
_SHM = "/dev/shm"  # noqa: S108


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the limits that are too low for a run."""
    yield from _check_shared_memory(machine)
    yield from _check_limits(machine)


def _check_shared_memory(machine: Machine) -> Iterator[Finding]:
    """Check the size of /dev/shm, through which the processes of NCCL exchange data."""
    space = machine.query_free_space(machine.root / _SHM.lstrip("/"))
    has_several_gpus = len(machine.gpus) > 1
    if space is None:
        if has_several_gpus:
            yield Finding(
                "shm-missing",
                BLOCKER,
                "is missing, and the processes of NCCL exchange data through it",
                _SHM,
                "start the container with --ipc=host or --shm-size=8g",
            )
        return
    if not machine.gpus or space.total >= SHM_TIGHT:
        return
    is_fatal = has_several_gpus and space.total < SHM_TOO_SMALL
    yield Finding(
        "shm-too-small",
        BLOCKER if is_fatal else WARNING,
        f"only {space.total >> 20} MiB, and NCCL crashes with SIGBUS when /dev/shm is full",
        _SHM,
        "start the container with --ipc=host or --shm-size=8g; outside a container: mount -o "
        "remount,size=8g /dev/shm",
        "NVIDIA/JAX-Toolbox#183",
    )


def _check_limits(machine: Machine) -> Iterator[Finding]:
    """Check the soft limits of this process, and the limit of processes of its control group."""
    limits = dict(
        re.findall(
            r"^(Max [a-z ]+?) {2,}(\S+)", machine.read_text("/proc/self/limits"), re.MULTILINE
        )
    )
    locked = limits.get("Max locked memory")
    if machine.find_paths("/sys/class/infiniband/*") and _is_below(locked, LEAST_LOCKED_MEMORY):
        yield Finding(
            "memlock",
            WARNING,
            f"only {int(locked or 0) >> 10} KiB may be locked, but NCCL registers its buffers with "
            "the network card",
            "ulimit -l",
            "docker: --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK and "
            "LimitMEMLOCK=infinity for slurmd",
        )
    open_files = limits.get("Max open files")
    if _is_below(open_files, LEAST_OPEN_FILES):
        yield Finding(
            "open-files",
            WARNING,
            f"only {open_files} files may be open, but checkpoints and the connections of NCCL "
            "need thousands",
            "ulimit -n",
            "ulimit -n 65536; docker: --ulimit nofile=65536:65536",
        )
    group_limit = machine.read_text("/sys/fs/cgroup/pids.max") or machine.read_text(
        "/sys/fs/cgroup/pids/pids.max"
    )
    processes = limits.get("Max processes")
    if _is_below(processes, LEAST_PROCESSES) or _is_below(group_limit, LEAST_PROCESSES):
        yield Finding(
            "processes",
            WARNING,
            f"fewer than {LEAST_PROCESSES} processes and threads are allowed, but each process of "
            "a run has hundreds",
            "ulimit -u",
            "ulimit -u 65536; docker and podman: --pids-limit=-1",
        )


def _is_below(limit: str | None, least: int) -> bool:
    """Return whether a limit is a number below `least`; None and "unlimited" are not."""
    return limit is not None and limit.isdecimal() and int(limit) < least
