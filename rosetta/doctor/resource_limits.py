"""What the kernel grants a process: shared memory, locked memory, open files, processes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor.finding import BLOCKER, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# Bytes of /dev/shm. Docker gives 64 MiB, of which NCCL dies; NVIDIA's own advice for its containers
# is 1 GiB.
SHM_TOO_SMALL, SHM_TIGHT = 128 << 20, 1 << 30
LEAST_LOCKED_MEMORY = (
    1 << 30
)  # bytes: less, and NCCL's buffers cannot be registered with the network card
LEAST_OPEN_FILES, LEAST_PROCESSES = 4096, 4096


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what is granted too little of."""
    yield from _check_shared_memory(machine)
    yield from _check_limits(machine)


def _check_shared_memory(machine: Machine) -> Iterator[Finding]:
    found = machine.room(machine.root / "dev/shm")
    several = len(machine.cards) > 1
    if found is None:
        if several:
            yield Finding(
                "shm-missing",
                BLOCKER,
                "it is not there, and NCCL's processes talk through it",
                "/dev/shm",  # noqa: S108
                "start the container with --ipc=host or --shm-size=8g",
            )
        return
    if not machine.cards or found.total >= SHM_TIGHT:
        return
    level = BLOCKER if several and found.total < SHM_TOO_SMALL else WARNING
    what = f"it has {found.total >> 20} MiB, and NCCL dies of SIGBUS where it is full"
    do = (
        "start the container with --ipc=host or --shm-size=8g; outside of one: mount -o "
        "remount,size=8g /dev/shm"
    )
    yield Finding("shm-too-small", level, what, "/dev/shm", do, "NVIDIA/JAX-Toolbox#183")  # noqa: S108


def _check_limits(machine: Machine) -> Iterator[Finding]:
    soft = dict(
        re.findall(r"^(Max [a-z ]+?) {2,}(\S+)", machine.text("/proc/self/limits"), re.MULTILINE)
    )
    if machine.names("/sys/class/infiniband/*") and _is_below(
        soft.get("Max locked memory"), LEAST_LOCKED_MEMORY
    ):
        what = (
            f"{int(soft['Max locked memory']) >> 10} KiB may be locked, and NCCL registers its "
            "buffers with the network card"
        )
        do = (
            "docker: --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK and "
            "LimitMEMLOCK=infinity for slurmd"
        )
        yield Finding("memlock", WARNING, what, "ulimit -l", do)
    if _is_below(soft.get("Max open files"), LEAST_OPEN_FILES):
        do = "ulimit -n 65536; docker: --ulimit nofile=65536:65536"
        yield Finding(
            "open-files",
            WARNING,
            (
                f"{soft['Max open files']} files may be open: checkpoints and NCCL's connections "
                "take thousands"
            ),
            "ulimit -n",
            do,
        )
    pids = machine.text("/sys/fs/cgroup/pids.max") or machine.text("/sys/fs/cgroup/pids/pids.max")
    if _is_below(soft.get("Max processes"), LEAST_PROCESSES) or _is_below(pids, LEAST_PROCESSES):
        do = "ulimit -u 65536; docker and podman: --pids-limit=-1"
        yield Finding(
            "processes",
            WARNING,
            (
                f"fewer than {LEAST_PROCESSES} processes and threads are allowed: each process of "
                "a run has hundreds"
            ),
            "ulimit -u",
            do,
        )


def _is_below(text: str | None, least: int) -> bool:
    return text is not None and text.isdecimal() and int(text) < least
