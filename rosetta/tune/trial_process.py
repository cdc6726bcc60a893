"""Programs that trials are made of: each has a log and a time, and none outlives us.

What a killed tuning left on a card would be in the way of the next one.
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
    """Programs that are run one after the other.

    Args:
      logs: folder of their logs.
      seconds: after which one is ended.
    """

    def __init__(self, logs: Path, seconds: float) -> None:
        self._logs, self._seconds = logs, seconds
        self._number = len(list(logs.glob("*.log"))) if logs.is_dir() else 0

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], out: IO[bytes] | None = None
    ) -> tuple[int | None, Path]:
        """Run one to its end.

        Args:
          argv: what it executes.
          env: its environment, the whole of it.
          out: takes what it writes on stdout; None: its log does.

        Returns:
          Its status, None where it took too long, and its log.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        self._number += 1
        log = self._logs / f"{self._number}.log"
        tie = functools.partial(parent_death.die_with_parent, os.getpid(), signal.SIGKILL)
        with log.open("wb") as file:
            process = subprocess.Popen(  # a thread could hang in it, and we have none
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
