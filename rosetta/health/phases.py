"""Report the phases of a run: reading data, restoring, compiling, training, ..."""

from __future__ import annotations

import os
import time

from rosetta.core import log


def begin_phase(text: str) -> None:
    """Write a line that says what the program does from now on, and how old the process is.

    Only the first process of a run writes such lines.

    Args:
      text: What it does, such as "reading data".
    """
    # JAX does not know its processes yet when the first phases begin.
    if os.environ.get("SLURM_PROCID", "0") not in ("", "0"):
        return
    log.info(f"[{format_age(read_process_age())}] {text}", prefix=False)


def format_age(seconds: float) -> str:
    """Return a time as minutes and seconds, with hours if there are any: "0:07", "1:02:03"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def read_process_age() -> float:
    """Return the seconds since this process started, the checks of its launcher included."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        # The second field, the name of the program, may contain spaces.
        fields = file.read().rpartition(")")[2].split()
    start = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start
