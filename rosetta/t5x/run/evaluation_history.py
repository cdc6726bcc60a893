"""The evaluations of a run so far: which step is the best by a metric, and when to stop.

The history is the file rosetta/evaluations.json in the folder of the run. A run that was killed
reads it when it resumes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, INVALID, UserError
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

FILE = "evaluations.json"
DEFAULT_METRIC = "loss"
SETTING = "KEEP_BEST"
PATIENCE_SETTING = "EARLY_STOP_PATIENCE"
# The metrics of every evaluation, which need no answers.
LOSS_METRICS = ("loss", "token_accuracy")
_MODES = ("min", "max")
# The words between the underscores of a metric's name that say which values are better.
_SMALLER_IS_BETTER = {"loss", "perplexity", "error", "wer", "cer", "ter", "mse", "rmse", "mae"}
_LARGER_IS_BETTER = {
    *("accuracy", "em", "f1", "match", "bleu", "rouge1", "rouge2", "rougeL", "rougeLsum", "auc"),
    *("precision", "recall", "corrcoef"),
}
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

    Min and max may be left out if the name has a word that says which values are better.

    Raises:
      UserError: the text does not name a metric, or does not say which values are better.
    """
    name, separator, mode = text.strip().rpartition(":")
    if not separator:
        name = mode
        mode = _find_mode(name)
    if not name or mode not in _MODES:
        raise UserError(
            "not a valid metric",
            f"{SETTING}={text}",
            "give METRIC, METRIC:min or METRIC:max, as in KEEP_BEST=loss or KEEP_BEST=accuracy",
            kind=INVALID,
            value=text,
        )
    return Metric(name, mode)


def _find_mode(name: str) -> str:
    """Return the mode of a metric METRIC or TASK/METRIC by the words of its name; "" for none.

    Raises:
      UserError: the name does not say which values are better.
    """
    words = set(name.rpartition("/")[2].split("_"))
    is_smaller, is_larger = bool(words & _SMALLER_IS_BETTER), bool(words & _LARGER_IS_BETTER)
    if name and is_smaller == is_larger:
        raise UserError(
            "the name does not say whether lower or higher values are better",
            f"{SETTING}={name}",
            f"write {name}:min or {name}:max",
            kind=INVALID,
            value=name,
        )
    return "min" if is_smaller else "max"


@dataclass
class EvaluationHistory:
    """The values of a metric at the steps that were evaluated.

    Attributes:
      metric: the metric.
      first_step: the step at which the run began.
      values: step -> value, in the order of the steps.
      others: the histories of metrics that the run had before, the last one first.
      kept_until: checkpoints up to this step are from before KEEP_BEST, which does not delete
        them; None while KEEP_BEST is not set.
    """

    metric: Metric
    first_step: int
    values: dict[int, float] = field(default_factory=dict)
    others: list[EvaluationHistory] = field(default_factory=list)
    kept_until: int | None = None

    def find_best(self, among: Collection[int] | None = None) -> int | None:
        """Return the best step, the first of equal ones; None without a finite value.

        Args:
          among: the steps that count; None for all.
        """
        best: int | None = None
        for step in self.values:
            if among is not None and step not in among:
                continue
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
            **self.describe(),
            "others": [other.describe() for other in self.others],
            "kept_until": self.kept_until,
        }
        run_folders.write_file(run_folders.make_path(_find_file(folder)), json.dumps(document))

    def describe(self) -> dict[str, object]:
        """Return what the file has of one metric."""
        return {
            "metric": self.metric.name,
            "mode": self.metric.mode,
            "first_step": self.first_step,
            # JSON has no NaN.
            "values": [[step, repr(value)] for step, value in self.values.items()],
        }


def _find_file(folder: str) -> str:
    """Return the path of the history in the folder of a run."""
    return f"{folder}/{checkpoint_record.RECORD_FOLDER}/{FILE}"


def _read_file(folder: str) -> EvaluationHistory | None:
    """Return the history in the folder of a run as it was written; None without one.

    Raises:
      UserError: the file cannot be read.
    """
    place = _find_file(folder)
    path = run_folders.make_path(place)
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
        history = _parse_history(document)
        history.others = [_parse_history(other) for other in document.get("others", ())]
        kept_until = document.get("kept_until")
        history.kept_until = None if kept_until is None else int(kept_until)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"the evaluations cannot be read ({type(error).__name__})",
            place,
            "remove the file; the best step is then found among the evaluations to come",
            kind=DAMAGED,
        ) from None
    return history


def _parse_history(document: Any) -> EvaluationHistory:
    """Return the history of one metric, of a part of the file."""
    metric = Metric(str(document["metric"]), str(document["mode"]))
    values = {int(step): float(value) for step, value in document["values"]}
    return EvaluationHistory(metric, int(document["first_step"]), dict(sorted(values.items())))


def read_history(folder: str, metric: Metric, first_step: int) -> EvaluationHistory:
    """Return the history of a run until its newest checkpoint; an empty one for a new run.

    What came after that checkpoint will be evaluated again. The histories of other metrics are in
    `others`.

    Args:
      folder: the folder of the run.
      metric: the metric.
      first_step: the step of the weights that a new run starts from.

    Raises:
      UserError: the file cannot be read.
    """
    steps = run_folders.list_checkpoint_steps(folder)
    if not steps:
        return EvaluationHistory(metric, first_step)
    saved = _read_file(folder)
    if saved is None:
        return EvaluationHistory(metric, steps[-1])
    histories = [saved, *saved.others]
    history = next(
        (known for known in histories if known.metric == metric),
        EvaluationHistory(metric, steps[-1]),
    )
    history.others = [known for known in histories if known is not history]
    history.kept_until = saved.kept_until
    for known in histories:
        known.values = {step: value for step, value in known.values.items() if step <= steps[-1]}
    return history


def end_keeping_best(folder: str) -> None:
    """Write down that a run without KEEP_BEST goes on in a folder, and keeps its checkpoints."""
    try:
        history = _read_file(folder)
    except UserError:
        return  # A run with KEEP_BEST reports the damaged file.
    if history is not None and history.kept_until is not None:
        history.kept_until = None
        history.write(folder)


def count_deletable(folder: str, steps: Sequence[int], *, keeps_older: bool) -> int:
    """Return how many checkpoints of a folder a run with KEEP_BEST may delete.

    Args:
      folder: the folder of the run.
      steps: the steps of its checkpoints.
      keeps_older: whether they all stay if KEEP_BEST is set for the first time.

    Raises:
      UserError: the history of the run cannot be read.
    """
    history = _read_file(folder)
    if history is None or history.kept_until is None:
        return 0 if keeps_older else len(steps)
    return sum(step > history.kept_until for step in steps)
