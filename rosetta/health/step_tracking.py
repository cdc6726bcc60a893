"""What becomes of steps that were given to the devices: when each is done and what its loss was,
without the training waiting for it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rosetta.health.step_failure import StepFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DURATIONS = 101  # durations of steps, for the median


class StepTracker:
    """Waits in a thread of its own for one step after the other.

    Attributes:
      given, done: steps that were begun, and that are over.
      last: when the last one was done, or its following began (time.monotonic).
      failed: the first step that failed on its devices, with what waiting for it raised.
    """

    def __init__(self, look: Callable[[int, float], None]) -> None:
        self._look = look
        self._queue: SimpleQueue[tuple[int, Callable[[], float]] | None] = SimpleQueue()
        self._durations = deque[float](maxlen=_MAX_DURATIONS)
        self._fresh = (
            True  # the next step's duration would hold a compilation, an evaluation or a checkpoint
        )
        self._changed = threading.Condition()
        self.given = self.done = 0
        self.last = time.monotonic()
        self.failed: StepFailedError | None = None
        self._thread = threading.Thread(target=self._follow, name="rosetta-steps", daemon=True)
        self._thread.start()

    def give(self, step: int, loss: Callable[[], float]) -> None:
        """Follow a step whose loss this function waits for."""
        with self._changed:
            self.given += 1
        self._queue.put((step, loss))

    def settle(self) -> None:
        """Wait until all steps that were given are done and looked at."""
        self.wait_until_behind(1)

    def wait_until_behind(self, limit: int) -> None:
        """Wait until fewer steps than `limit` are given and not done."""
        with self._changed:
            self._changed.wait_for(lambda: self.given - self.done < limit)

    def rest(self) -> None:
        """Leave the time until the next step is done out of the measurement."""
        self.last = time.monotonic()
        self._fresh = True

    @property
    def median(self) -> float | None:
        """Of the durations of the last steps, in seconds; None before there are any."""
        return statistics.median(self._durations) if self._durations else None

    def close(self) -> None:
        """Wait for all steps and end."""
        self._queue.put(None)
        self._thread.join()

    def _follow(self) -> None:
        while (found := self._queue.get()) is not None:
            step, loss = found
            try:
                value: Any = loss()
                now = time.monotonic()
                if not self._fresh:
                    self._durations.append(now - self.last)
                self.last, self._fresh = now, False
                self._look(step, value)
            except Exception as error:  # noqa: BLE001 (the training is told before its next step)
                self.failed = self.failed or StepFailedError(step, error)
            with self._changed:
                self.done += 1
                self._changed.notify_all()
