"""Follow the steps that the training dispatched to its devices.

JAX returns before a step is done. A thread of its own waits for the loss of each step, so that the
training does not wait.
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

_MAX_DURATIONS = 101  # step durations that the median is taken of


class StepTracker:
    """Waits for the dispatched steps, one after the other, in a thread of its own.

    Attributes:
      dispatched: the number of steps that were given to the devices.
      done: the number of steps that are over.
      last_done: when the last step was done, or the measurement began (time.monotonic).
      failure: the first step that failed on its devices, with the error that waiting for it raised.
    """

    def __init__(self, check_loss: Callable[[int, float], None]) -> None:
        self._check_loss = check_loss
        self._queue: SimpleQueue[tuple[int, Callable[[], float]] | None] = SimpleQueue()
        self._durations = deque[float](maxlen=_MAX_DURATIONS)
        # The duration of the next step would include a compilation, an evaluation or a checkpoint.
        self._skips_next_duration = True
        self._changed = threading.Condition()
        self.dispatched = self.done = 0
        self.last_done = time.monotonic()
        self.failure: StepFailedError | None = None
        self._thread = threading.Thread(target=self._follow, name="rosetta-steps", daemon=True)
        self._thread.start()

    def track(self, step: int, wait_for_loss: Callable[[], float]) -> None:
        """Follow a step whose loss the function waits for and returns."""
        with self._changed:
            self.dispatched += 1
        self._queue.put((step, wait_for_loss))

    def wait_for_all(self) -> None:
        """Wait until all dispatched steps are done and their losses are checked."""
        self.wait_until_fewer_than(1)

    def wait_until_fewer_than(self, limit: int) -> None:
        """Wait until fewer than `limit` steps are dispatched and not done."""
        with self._changed:
            self._changed.wait_for(lambda: self.dispatched - self.done < limit)

    def restart_clock(self) -> None:
        """Leave the time until the next step is done out of the measurement."""
        self.last_done = time.monotonic()
        self._skips_next_duration = True

    @property
    def median_duration(self) -> float | None:
        """The median duration of the last steps in seconds; None before there are any."""
        return statistics.median(self._durations) if self._durations else None

    def close(self) -> None:
        """Wait for all steps and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _follow(self) -> None:
        while (queued := self._queue.get()) is not None:
            step, wait_for_loss = queued
            try:
                loss: Any = wait_for_loss()
                now = time.monotonic()
                if not self._skips_next_duration:
                    self._durations.append(now - self.last_done)
                self.last_done, self._skips_next_duration = now, False
                self._check_loss(step, loss)
            except Exception as error:  # noqa: BLE001 (the training raises it before its next step)
                self.failure = self.failure or StepFailedError(step, error)
            with self._changed:
                self.done += 1
                self._changed.notify_all()
