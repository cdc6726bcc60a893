"""The evaluations of a run so far: which step is the best by a metric, and when to stop.

The history is the file rosetta/evaluations.json in the folder of the run. A run that was killed
reads it when it resumes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, INVALID, UserError
from rosetta.t5x.run import checkpoint_record

FILE = "evaluations.json"
DEFAULT_METRIC = "loss"
SETTING = "KEEP_BEST"
PATIENCE_SETTING = "EARLY_STOP_PATIENCE"
# The metrics of every evaluation, which need no answers.
LOSS_METRICS = ("loss", "token_accuracy")
_MODES = ("min", "max")
# A metric whose name has one of these words is better if it is smaller.
_SMALLER_IS_BETTER = ("loss", "perplexity", "error")
_SCHEMA = 1


@dataclass(frozen=True)
class Metric:
    """What tells the best step.

    Attributes:
      name: the name of the metric, or TASK/NAME.
      mode: "min" or "max": whether the smallest or the largest value is the best.
    """

    name: str
    mode: str

    @property
    def direction(self) -> str:
        """What counts as better, for people."""
        return "lower is better" if self.mode == "min" else "higher is better"

    def is_better(self, value: float, other: float | None) -> bool:
        """Return whether a value is better than another; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if other is None or not math.isfinite(other):
            return True
        return value < other if self.mode == "min" else value > other


def parse_metric(text: str) -> Metric:
    """Return the metric of a text METRIC, METRIC:min or METRIC:max.

    Without min or max, losses, perplexities and errors are better if they are smaller, and other
    metrics if they are larger.

    Raises:
      UserError: the text does not name a metric.
    """
    name, separator, mode = text.strip().rpartition(":")
    if not separator:
        name = mode
        last = name.rpartition("/")[2]
        mode = "min" if any(word in last for word in _SMALLER_IS_BETTER) else "max"
    if not name or mode not in _MODES:
        raise UserError(
            "not a valid metric",
            f"{SETTING}={text}",
            "give METRIC, METRIC:min or METRIC:max, as in KEEP_BEST=loss or KEEP_BEST=accuracy",
            kind=INVALID,
            value=text,
        )
    return Metric(name, mode)


@dataclass
class EvaluationHistory:
    """The values of a metric at the steps that were evaluated.

    Attributes:
      metric: the metric.
      first_step: the step at which the run began.
      values: step -> value, in the order of the steps.
    """

    metric: Metric
    first_step: int
    values: dict[int, float] = field(default_factory=dict)

    def find_best(self) -> int | None:
        """Return the best step, the first of equal ones; None without a finite value."""
        best: int | None = None
        for step in self.values:
            if self.metric.is_better(
                self.values[step], None if best is None else self.values[best]
            ):
                best = step
        return best

    def count_since_best(self) -> int:
        """Return the number of evaluations after the best one, or of all without a best one."""
        best = self.find_best()
        return sum(best is None or step > best for step in self.values)

    def has_to_stop(self, patience: int | None) -> bool:
        """Return whether the metric has not improved for too long.

        Args:
          patience: the evaluations without an improvement after which the run stops; None for no
            limit.
        """
        return patience is not None and self.count_since_best() >= patience

    def is_overdue(self, step: int, period: int, last_step: int) -> bool:
        """Return whether a run that resumes was killed before it evaluated its checkpoint.

        Args:
          step: the step of the checkpoint.
          period: the steps between evaluations.
          last_step: the step at which the run ends, and is evaluated in any case.
        """
        if step in self.values or step <= self.first_step:
            return False
        before = max((known for known in self.values if known < step), default=self.first_step)
        return step - before >= period or step == last_step

    def write(self, folder: str) -> None:
        """Write the history to the folder of the run."""
        document = {
            "schema": _SCHEMA,
            "metric": self.metric.name,
            "mode": self.metric.mode,
            "first_step": self.first_step,
            # JSON has no NaN.
            "values": [[step, repr(value)] for step, value in self.values.items()],
        }
        path = run_folders.make_path(f"{folder}/{checkpoint_record.RECORD_FOLDER}/{FILE}")
        run_folders.write_file(path, json.dumps(document))


def read_history(folder: str, metric: Metric, first_step: int) -> EvaluationHistory:
    """Return the history of a run until its newest checkpoint; an empty one for a new run.

    What came after that checkpoint will be evaluated again. The history of another metric does not
    count.

    Args:
      folder: the folder of the run.
      metric: the metric.
      first_step: the step of the weights that a new run starts from.

    Raises:
      UserError: the file cannot be read.
    """
    steps = run_folders.list_checkpoint_steps(folder)
    place = f"{folder}/{checkpoint_record.RECORD_FOLDER}/{FILE}"
    path = run_folders.make_path(place)
    if not steps:
        return EvaluationHistory(metric, first_step)
    if not path.exists():
        return EvaluationHistory(metric, steps[-1])
    try:
        document = json.loads(path.read_text())
        saved_metric = Metric(str(document["metric"]), str(document["mode"]))
        saved = {int(step): float(value) for step, value in document["values"]}
        first_step = int(document["first_step"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"the evaluations cannot be read ({type(error).__name__})",
            place,
            "remove the file; the best step is then found among the evaluations to come",
            kind=DAMAGED,
        ) from None
    if saved_metric != metric:
        return EvaluationHistory(metric, steps[-1])
    values = {step: value for step, value in sorted(saved.items()) if step <= steps[-1]}
    return EvaluationHistory(metric, first_step, values)
