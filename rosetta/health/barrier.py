"""One step for all processes: what one of them asks for happens before the same step in each.

Each tells the others before which step it stands, while its own steps wait; all then take the one
after the furthest. A thread does the telling, so that a process whose training waits for another's
does not keep it waiting in turn.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rosetta.health.key_value_store import KeyValueStore

_POLL_INTERVAL = 0.05  # s
ANSWER_TIMEOUT = 60.0  # s for all to answer


class StepBarrier:
    """Agrees on a step, as often as it is asked for.

    `turn` is called every now and then by one thread, the rest by the training's.
    """

    def __init__(self, name: str, board: KeyValueStore, rank: int, ranks: int) -> None:
        self._name, self._board, self._rank, self._ranks = name, board, rank, ranks
        self._lock = threading.Lock()
        self._round = 0
        self._step = -1  # the training stands before it, or does it; -1 before the first
        self._at: int | None = None
        self._asked: str | None = None
        self._told = False
        self.reason: str | None = None  # of who asked, the lowest rank's where several did

    def ask(self, reason: str) -> None:
        """Ask for it, as soon as can be. Only sets a value: a signal handler may."""
        self._asked = self._asked or reason

    def reached(self, step: int) -> bool:
        """Return whether it is to happen now, before this step; true once for each time it was
        agreed on.
        """
        with self._lock:
            if self._ranks == 1 and self._asked and self._at is None:
                self._at, self.reason = step, self._asked
            if self._at is None or step < self._at:
                self._step = step
                return False
            self._at, self._asked, self._told = None, None, False
            self._step, self._round = step, self._round + 1
            return True

    def turn(self) -> None:
        """Look whether anybody asks, and agree with all. Does nothing in a run of one process.

        Raises:
          TimeoutError: some did not answer.
        """
        if self._ranks == 1 or self._at is not None:
            return
        asks, steps = f"{self._name}/{self._round}/asks", f"{self._name}/{self._round}/steps"
        if self._asked and not self._told:
            self._board.put(f"{asks}/{self._rank}", self._asked)
            self._told = True
        found = self._board.under(asks)
        if not found:
            return
        with self._lock:
            self._board.put(f"{steps}/{self._rank}", str(self._step))
            end = time.monotonic() + ANSWER_TIMEOUT
            while len(told := self._board.under(steps)) < self._ranks:
                if time.monotonic() > end:
                    silent = [str(each) for each in range(self._ranks) if str(each) not in told]
                    raise TimeoutError(f"process(es) {', '.join(silent)} did not answer")
                time.sleep(_POLL_INTERVAL)
            self._at, self.reason = max(map(int, told.values())) + 1, found[min(found, key=int)]
