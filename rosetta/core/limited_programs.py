"""Run programs one after the other: each has a log, a time limit and perhaps a memory limit.

No program outlives the one that started it. If one did, it would use the GPU or the memory of this
machine during the next start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rosetta.core import parent_death

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIME, MEMORY = "time", "memory"
SECONDS_BETWEEN_CHECKS = 0.5


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended.

    Attributes:
      status: Its exit status; None if it was ended because of a limit.
      log: Its log.
      limit: TIME or MEMORY if it was ended because of this limit, else "".
    """

    status: int | None
    log: Path
    limit: str = ""


class LimitedPrograms:
    """Programs that run one after the other.

    Args:
      logs: The folder for their logs.
      seconds: The time after which a program is ended.
      memory: The resident memory, in bytes, above which a program is ended; None for no limit.
    """

    def __init__(self, logs: Path, seconds: float, memory: int | None = None) -> None:
        self._logs, self._seconds, self._memory = logs, seconds, memory
        self._number = len(list(logs.glob("*.log"))) if logs.is_dir() else 0

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], out: IO[bytes] | None = None
    ) -> ProgramEnd:
        """Run a program until it ends.

        Args:
          argv: The program and its arguments.
          env: All of its environment variables.
          out: The file for its stdout; None for its log.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._number += 1
        log = self._logs / f"{self._number}.log"
        # preexec_fn could deadlock with other threads, but it only calls prctl.
        tie = functools.partial(parent_death.die_with_parent, os.getpid(), signal.SIGKILL)
        with log.open("wb") as file:
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out or file,
                stderr=file,
                start_new_session=True,
                preexec_fn=tie,  # noqa: PLW1509
            )
        try:
            return self._wait(process, log)
        finally:
            # A program that ended itself may have left others in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> ProgramEnd:
        """Wait until a program ends or reaches a limit."""
        deadline = time.monotonic() + self._seconds
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return ProgramEnd(None, log, TIME)
            if self._memory and read_resident_memory(process.pid) > self._memory:
                return ProgramEnd(None, log, MEMORY)
            pause = min(remaining, SECONDS_BETWEEN_CHECKS) if self._memory else remaining
            try:
                return ProgramEnd(process.wait(timeout=pause), log)
            except subprocess.TimeoutExpired:
                continue


def read_resident_memory(pid: int) -> int:
    """Return the bytes of memory that a process has; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def read_available_memory() -> int | None:
    """Return the bytes of memory that this machine has left; None if Linux does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
