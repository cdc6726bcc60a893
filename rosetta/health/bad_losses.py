"""Decide which losses are bad, and write down what is known of a bad step."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.core.value_parsing import is_address
from rosetta.health import progress

if TYPE_CHECKING:
    from collections.abc import Mapping

HISTORY_LENGTH = 100  # losses that the median is taken of, and that the dump lists
_MIN_HISTORY = 20  # A median of fewer losses says little.
MAX_SKIPPED_IN_A_ROW = 10  # More bad steps in a row are no accident.


@dataclass(frozen=True)
class BadStep:
    """A step whose loss is bad.

    Attributes:
      step: the number of steps that were done before it.
      loss: its loss.
      why: what is wrong, as a clause.
    """

    step: int
    loss: float
    why: str


class LossMonitor:
    """Checks the loss of each step, in the order of the steps.

    Args:
      spike: a loss above so many times the median is bad; 0: only a loss that is not finite is.

    Attributes:
      history: the last (step, loss), the newest at the end.
      bad_in_a_row: the bad steps since the last good one.
    """

    def __init__(self, spike: float = 0.0) -> None:
        self._spike = spike
        self.history = deque[tuple[int, float]](maxlen=HISTORY_LENGTH)
        self.bad_in_a_row = 0

    def check_loss(self, step: int, loss: float) -> BadStep | None:
        """Record a loss; return what is wrong with it, or None if it is good."""
        earlier = [value for _, value in self.history if math.isfinite(value)]
        self.history.append((step, loss))
        why = self._find_fault(loss, earlier)
        if why is None:
            self.bad_in_a_row = 0
            return None
        self.bad_in_a_row += 1
        return BadStep(step, loss, why)

    def _find_fault(self, loss: float, earlier: list[float]) -> str | None:
        """Return why a loss is bad, given the finite losses before it; None if it is good."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not self._spike or len(earlier) < _MIN_HISTORY:
            return None
        median = statistics.median(earlier)
        if loss <= self._spike * median:
            return None
        return (
            f"the loss is {loss:.4g}, over {self._spike:g} times the median of the last "
            f"{len(earlier)} steps, {median:.4g}"
        )


def write_dump(
    folder: str,
    rank: int,
    bad_step: BadStep,
    history: list[tuple[int, float]],
    batch: Mapping[str, Any] | None,
    scales: Mapping[str, list[float]],
) -> str:
    """Write down what is known of a bad step; return the folder, FOLDER/bad_step_N.

    Args:
      folder: of the run. For an object store, the dump goes into the working folder.
      rank: of this process. Each process writes its share of the batch, rank 0 writes the rest.
      bad_step: the step.
      history: (step, loss) of the steps before it, and of the step itself.
      batch: hash, shard and examples of this process's rows; None if they cannot be made again.
      scales: FP8's scales by the name of the array; empty if nothing is in FP8.
    """
    parent = str(Path.cwd()) if is_address(folder) else folder.rstrip("/")
    dump = Path(f"{parent}/bad_step_{bad_step.step}")
    if batch is not None:
        run_folders.write_file(dump / f"batch-{rank:04d}.json", json.dumps(batch))
    if rank == 0:
        losses = [[step, progress.encode_non_finite(loss)] for step, loss in history]
        report = {
            "step": bad_step.step,
            "loss": progress.encode_non_finite(bad_step.loss),
            "why": bad_step.why,
            "losses": losses,
        }
        run_folders.write_file(dump / "loss.json", json.dumps(report))
        if scales:
            encoded = {name: _encode_values(values) for name, values in scales.items()}
            run_folders.write_file(dump / "fp8.json", json.dumps(encoded))
    return f"{parent}/bad_step_{bad_step.step}"


def _encode_values(values: list[float]) -> list[Any]:
    """Return numbers as JSON can hold them."""
    return [progress.encode_non_finite(value) for value in values]
