"""Say why a process that we started was killed: the kernel does so when memory runs out, and says
it only in its own log.
"""

from __future__ import annotations

import signal
from pathlib import Path

_KILLED = 128 + signal.SIGKILL


def count_oom_kills() -> int | None:
    """Return how many processes the kernel has killed for memory since it started, None where it
    does not tell.
    """
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return None


def describe_kill(who: str, code: int, before: int | None) -> str | None:
    """Return a line on a process that SIGKILL ended, None where something else did.

    Args:
      who: the process.
      code: its exit status as a shell tells it.
      before: what count_oom_kills returned when it was started.
    """
    if code != _KILLED:
        return None
    after = count_oom_kills()
    less = (
        "take a smaller batch, fewer data processes (ROSETTA_DATA_WORKERS) or a machine with more "
        "memory"
    )
    if before is not None and after is not None and after > before:
        return (
            f"{who} was killed (status 137): the kernel ended a process since memory ran out; "
            f"{less}"
        )
    return (
        f"{who} was killed (status 137): by somebody, or by a memory limit that was reached; if "
        f"it was memory, {less}"
    )
