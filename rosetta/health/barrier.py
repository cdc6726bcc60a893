"""A barrier for the steps of a run: all processes act before the same step.

The supervision of a run uses it for stops and for checkpoints by time. A process requests an action
at any time. Each process then publishes its current step and holds its next one, and all act before
the step after the furthest. A thread polls for requests, so that a process whose training waits for
another process still answers.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rosetta.health.key_value_store import KeyValueStore

_POLL_INTERVAL = 0.05  # seconds
ANSWER_TIMEOUT = 60.0  # seconds in which all processes have to answer


class StepBarrier:
    """Agrees on a step in all processes, once for each request.

    One thread calls `poll` at intervals; the thread of the training calls the other methods.

    Attributes:
      reason: the reason of the request; of several requests, that of the lowest rank.
    """

    def __init__(self, name: str, store: KeyValueStore, rank: int, ranks: int) -> None:
        self._name, self._store, self._rank, self._ranks = name, store, rank, ranks
        self._lock = threading.Lock()
        self._round = 0
        self._current_step = -1  # the step that the training runs or is about to run
        self._agreed_step: int | None = None
        self._requested_reason: str | None = None
        self._is_request_published = False
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Request the action as soon as possible.

        The method only sets a value, so a signal handler may call it.
        """
        self._requested_reason = self._requested_reason or reason

    def is_reached(self, step: int) -> bool:
        """Return whether the action is due before this step: once for each agreement."""
        with self._lock:
            if self._ranks == 1 and self._requested_reason and self._agreed_step is None:
                self._agreed_step, self.reason = step, self._requested_reason
            if self._agreed_step is None or step < self._agreed_step:
                self._current_step = step
                return False
            self._agreed_step, self._requested_reason = None, None
            self._is_request_published = False
            self._current_step, self._round = step, self._round + 1
            return True

    def poll(self) -> None:
        """Look for a request of any process, and agree on a step with all of them.

        Does nothing in a run of one process.

        Raises:
          TimeoutError: some processes did not answer.
        """
        if self._ranks == 1 or self._agreed_step is not None:
            return
        requests_folder = f"{self._name}/{self._round}/asks"
        steps_folder = f"{self._name}/{self._round}/steps"
        if self._requested_reason and not self._is_request_published:
            self._store.put(f"{requests_folder}/{self._rank}", self._requested_reason)
            self._is_request_published = True
        requests = self._store.list_folder(requests_folder)
        if not requests:
            return
        with self._lock:
            self._store.put(f"{steps_folder}/{self._rank}", str(self._current_step))
            steps = self._wait_for_steps(steps_folder)
            self._agreed_step = max(map(int, steps.values())) + 1
            self.reason = requests[min(requests, key=int)]

    def _wait_for_steps(self, folder: str) -> dict[str, str]:
        """Return the current step of each process, by rank."""
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while len(steps := self._store.list_folder(folder)) < self._ranks:
            if time.monotonic() > deadline:
                silent = [str(rank) for rank in range(self._ranks) if str(rank) not in steps]
                raise TimeoutError(f"process(es) {', '.join(silent)} did not answer")
            time.sleep(_POLL_INTERVAL)
        return steps
