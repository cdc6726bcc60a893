"""Which losses are bad, and what is written down of one."""

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

HISTORY_LENGTH = 100  # losses, for the median and the dump
_MIN_HISTORY = 20  # before which a median says little
MAX_SKIPPED_IN_A_ROW = 10  # bad steps in a row that may be left out; more are no accident


@dataclass(frozen=True)
class BadStep:
    """A step whose loss is bad: step s is the one that begins with s steps done."""

    step: int
    loss: float
    why: str


class LossMonitor:
    """Looks at the loss of each step, in their order."""

    def __init__(self, spike: float = 0.0) -> None:
        self._spike = spike
        self.history = deque[tuple[int, float]](maxlen=HISTORY_LENGTH)
        self.row = 0  # bad ones without a good one between

    def look(self, step: int, loss: float) -> BadStep | None:
        """Return what is bad about a loss, None where it is a good one."""
        known = [value for _, value in self.history if math.isfinite(value)]
        self.history.append((step, loss))
        why = None
        if not math.isfinite(loss):
            why = f"the loss is {loss}"
        elif (
            self._spike
            and len(known) >= _MIN_HISTORY
            and loss > self._spike * (median := statistics.median(known))
        ):
            why = (
                f"the loss is {loss:.4g}, over {self._spike:g} times the median of the last "
                f"{len(known)} steps, {median:.4g}"
            )
        self.row = self.row + 1 if why else 0
        return BadStep(step, loss, why) if why else None


def write_dump(
    folder: str,
    rank: int,
    bad: BadStep,
    history: list[tuple[int, float]],
    batch: Mapping[str, Any] | None,
    scales: Mapping[str, list[float]],
) -> str:
    """Write down what is known of a bad step; return the folder, FOLDER/bad_step_N.

    Args:
      folder: of the run.
      rank: of this process, which writes its own share of the batch, and rank 0 the rest.
      bad: the step.
      history: (step, loss) of the steps before, and of it.
      batch: hash, shard and examples of this process' rows; None where they cannot be made again.
      scales: of FP8, by the name of the array; none where nothing is in FP8.
    """
    into = f"{folder.rstrip('/')}/bad_step_{bad.step}"
    if is_address(folder):
        into = f"{Path.cwd()}/bad_step_{bad.step}"
    if batch is not None:
        run_folders.write_file(Path(into, f"batch-{rank:04d}.json"), json.dumps(batch))
    if rank == 0:
        told = {
            "step": bad.step,
            "loss": progress.encode_non_finite(bad.loss),
            "why": bad.why,
            "losses": [[step, progress.encode_non_finite(loss)] for step, loss in history],
        }
        run_folders.write_file(Path(into, "loss.json"), json.dumps(told))
        if scales:
            run_folders.write_file(
                Path(into, "fp8.json"),
                json.dumps(
                    {
                        name: [progress.encode_non_finite(value) for value in values]
                        for name, values in scales.items()
                    }
                ),
            )
    return into
