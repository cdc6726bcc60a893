"""Explain why a process that rosetta started was killed.

The kernel kills a process when memory runs out, and reports the kill only in its own log. The
launchers compare the kernel's count of such kills before and after a run.
"""

from __future__ import annotations

import signal
from pathlib import Path

_KILLED = 128 + signal.SIGKILL
_USE_LESS_MEMORY = (
    "take a smaller batch, fewer data processes (ROSETTA_DATA_WORKERS) or a machine with more "
    "memory"
)


def count_oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since the machine started.

    None means that the kernel does not report the number.
    """
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return None


def describe_kill(process: str, status: int, kills_before: int | None) -> str | None:
    """Return a line on a process that SIGKILL ended, or None if something else ended the process.

    Args:
      process: The process, as the line names it.
      status: Its exit status, as a shell reports it.
      kills_before: What count_oom_kills returned when the process started.
    """
    if status != _KILLED:
        return None
    kills = count_oom_kills()
    if kills_before is not None and kills is not None and kills > kills_before:
        return (
            f"{process} was killed (status 137): the kernel ended a process because memory ran "
            f"out; {_USE_LESS_MEMORY}"
        )
    return (
        f"{process} was killed (status 137): by a person or a program, or because it reached a "
        f"memory limit; if memory ran out, {_USE_LESS_MEMORY}"
    )
