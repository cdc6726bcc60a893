"""Run the programs of trials, one after the other: each has a log and a time limit.

No program outlives the tuning. If one did, it would use the GPU during the next tuning.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from typing import IO, TYPE_CHECKING

from rosetta.core import parent_death

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class TrialProcesses:
    """Programs that run one after the other.

    Args:
        logs: The folder for their logs.
        seconds: The time after which a program is ended.
    """

    def __init__(self, logs: Path, seconds: float) -> None:
        self._logs, self._seconds = logs, seconds
        self._number = len(list(logs.glob("*.log"))) if logs.is_dir() else 0

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], out: IO[bytes] | None = None
    ) -> tuple[int | None, Path]:
        """Run a program until it ends.

        Args:
            argv: The program and its arguments.
            env: All of its environment variables.
            out: The file for its stdout; None for its log.

        Returns:
            Its exit status, or None if it took too long, and its log.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._number += 1
        log = self._logs / f"{self._number}.log"
        # preexec_fn could deadlock with other threads, but this program has none.
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
            return process.wait(timeout=self._seconds), log
        except subprocess.TimeoutExpired:
            return None, log
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
