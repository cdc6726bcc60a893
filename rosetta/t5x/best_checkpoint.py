"""Keep the best checkpoint by a metric of the evaluations, and stop a run that does not improve.

T5X saves a step before it evaluates the step. So the best step is known when the next checkpoint is
saved, and checkpoint_manager then deletes the others. The gin files call the functions here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import seqio
from jax.experimental import multihost_utils
from t5x import trainer

from rosetta.core import log, run_folders
from rosetta.core.errors import INVALID, UNKNOWN, UserError
from rosetta.health import progress, run_results
from rosetta.t5x.run import checkpoint_record, evaluation_history
from rosetta.t5x.run.evaluation_history import LOSS_METRICS, PATIENCE_SETTING, SETTING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.t5x.run.evaluation_history import EvaluationHistory

_tracker: Tracker | None = None


class Tracker:
    """Finds the best step of a run.

    Only the first process records evaluations. The others ask it, see broadcast_best_step.

    Args:
      history: the evaluations so far.
      folder: the folder of the run.
      patience: see EvaluationHistory.has_to_stop.
      keeps_best: whether the best checkpoint is kept when others are deleted.
    """

    def __init__(
        self, history: EvaluationHistory, folder: str, *, patience: int | None, keeps_best: bool
    ) -> None:
        self._history = history
        self._folder = folder
        self._patience = patience
        self._reporter = progress.ProgressWriter(folder) if jax.process_index() == 0 else None
        self._names: set[str] = set()  # of the metrics since the last call of finish_evaluation
        self.keeps_best = keeps_best

    @property
    def history(self) -> EvaluationHistory:
        """The evaluations so far."""
        return self._history

    @property
    def needs_answers(self) -> bool:
        """Whether the metric is computed from answers, after the loss."""
        return self._history.metric.name.rpartition("/")[2] not in LOSS_METRICS

    @property
    def has_to_stop(self) -> bool:
        """Whether the run stops."""
        return self._history.has_to_stop(self._patience)

    def begin(self) -> None:
        """Write down where a new run begins, and say what the run does."""
        metric = self._history.metric
        if jax.process_index() != 0:
            return
        checkpoint_record.make_folder(self._folder)
        self._history.write(self._folder)
        actions = []
        if self.keeps_best:
            actions.append("the best checkpoint is kept")
        if self._patience is not None:
            actions.append(f"the run stops after {self._patience} evaluations without a better one")
        log.info(f"{metric.name} ({metric.direction}): {', and '.join(actions)}")
        if self.keeps_best:
            self._describe_older_checkpoints()
        best = self._history.find_best()
        if best is not None:
            log.info(f"the best step so far is {best:,}: {self._format_value(best)}")
        if self.has_to_stop:
            log.info(
                f"the run has stopped already: {self._explain_stop()}; a larger "
                f"{PATIENCE_SETTING} continues it"
            )
            self.set_result()

    def _describe_older_checkpoints(self) -> None:
        """Say which checkpoints stay that are not the best by the metric."""
        steps = run_folders.list_checkpoint_steps(self._folder)
        older = [step for step in steps if self.is_older(step)]
        if older:
            log.info(
                f"the {len(older)} checkpoint(s) from before {SETTING} stay, up to step "
                f"{older[-1]:,}: remove them yourself if you do not need them"
            )
        if self._history.find_best(steps) is not None:
            return
        for other in self._history.others:
            best = other.find_best(steps)
            if best is not None:
                log.info(
                    f"checkpoint {best:,}, the best by {other.metric.name}, stays until there is "
                    f"a best one by {self._history.metric.name}"
                )
                return

    def is_older(self, step: int) -> bool:
        """Return whether a checkpoint is from before KEEP_BEST was set."""
        return self._history.kept_until is not None and step <= self._history.kept_until

    def find_best_saved(self) -> int | None:
        """Return the best step that has a checkpoint.

        While the metric has no value, the best step by the metric before it counts.
        """
        steps = run_folders.list_checkpoint_steps(self._folder)
        for history in (self._history, *self._history.others):
            best = history.find_best(steps)
            if best is not None:
                return best
        return None

    def record(self, step: int, task: str, values: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation, on the first process.

        Args:
          step: the step that was evaluated.
          task: the name of the data set or task.
          values: metric -> value.
        """
        names = [f"{task}/{name}" for name in values]
        self._names.update(names)
        matching = match_names(self._history.metric.name, names)
        if not matching:
            return
        value = float(values[matching[0].removeprefix(f"{task}/")])
        self._history.values.pop(step, None)  # keeps the order
        self._history.values[step] = value
        self._history.write(self._folder)
        self._report(step)

    def finish_evaluation(self) -> bool:
        """Return whether the run has to stop after an evaluation, on the first process.

        Raises:
          UserError: the evaluation did not have the metric.
        """
        names, self._names = self._names, set()
        check_metric(self._history.metric.name, sorted(names))
        if self.has_to_stop:
            step = next(reversed(self._history.values))
            reason = self._explain_stop()
            log.info(f"the run stops at step {step:,}: {reason} ({PATIENCE_SETTING})")
            if self._reporter:
                self._reporter.append({"step": step, "stopped": reason})
            run_results.set_result("stopped early", reason)
        return self.has_to_stop

    def _explain_stop(self) -> str:
        """Return why the run stops."""
        best, count = self._history.find_best(), self._history.count_since_best()
        since = "the beginning" if best is None else f"step {best:,}"
        return f"{self._history.metric.name} has not improved in {count} evaluations since {since}"

    def _report(self, step: int) -> None:
        """Report the best step, after the evaluation of a step."""
        best = self._history.find_best()
        if best is None:
            return
        name, value = self._history.metric.name, self._history.values[best]
        count = self._history.count_since_best()
        line = f"step {step:,} is the best so far: {self._format_value(best)}"
        if best != step:
            limit = "" if self._patience is None else f" of {self._patience}"
            line = (
                f"step {best:,} is still the best: {self._format_value(best)} ({count}{limit} "
                "evaluations without a better one)"
            )
        log.info(line, prefix=False)
        if self._reporter:
            shown = {"step": best, "metric": name, "value": value}
            self._reporter.append({"step": step, "best": shown, "evaluations_since_best": count})
        self.set_result()

    def set_result(self) -> None:
        """Set the line about the best step at the end of the run."""
        best = self._history.find_best()
        if best is None:
            return
        text = f"step {best:,}, {self._format_value(best)}"
        if self.keeps_best:
            saved = self._history.find_best(run_folders.list_checkpoint_steps(self._folder))
            if saved != best:
                text += ", without a checkpoint"
            if saved is not None:
                value = (
                    "" if saved == best else f"; of the saved steps, {self._format_value(saved)}"
                )
                text += f"{value}, {self._folder}/checkpoint_{saved}"
        run_results.set_result("best", text)

    def _format_value(self, step: int) -> str:
        """Return the metric and its value at a step, for people."""
        return f"{self._history.metric.name} {self._history.values[step]:.4g}"


class _StopAction(trainer.BaseAction):
    """T5X's hook after an evaluation, which it runs on the first process."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def run(self, train_state: Any, metrics_by_task: Any) -> bool:
        """Return whether the run has to stop."""
        del train_state, metrics_by_task
        return self._tracker.finish_evaluation()


def get_tracker() -> Tracker | None:
    """Return the tracker of this process's run; None without KEEP_BEST and EARLY_STOP_PATIENCE."""
    return _tracker


@functools.cache  # gin calls it for each argument of T5X's train
def make_tracker(
    keep_best: str | None,
    patience: int | None,
    model_dir: str,
    start: str | None = None,
    task: Any = None,
    *,
    answers: bool = False,
    keeps_older: bool = False,
) -> Tracker | None:
    """Return the tracker of the run; None if nothing is tracked.

    Args:
      keep_best: the metric, see evaluation_history.parse_metric; None to keep no best checkpoint.
      patience: the evaluations without an improvement after which the run stops; None for no
        limit.
      model_dir: the folder of the run.
      start: the checkpoint_N that the run starts from; None for random weights.
      task: the SeqIO task or mixture that is evaluated, or its name.
      answers: whether answers are evaluated, too, not only the loss.
      keeps_older: whether checkpoints stay that the folder has when keep_best is first set.

    Raises:
      UserError: a value is not valid, or the evaluations will not have the metric.
    """
    global _tracker  # noqa: PLW0603 (one run a process)
    if not keep_best and patience is None:
        if jax.process_index() == 0:
            evaluation_history.end_keeping_best(model_dir)
        return None
    if patience is not None and (not isinstance(patience, int) or patience < 1):
        raise UserError(
            f"{patience!r} is not a valid number of evaluations",
            PATIENCE_SETTING,
            "give a whole number of at least 1",
            kind=INVALID,
            value=patience,
        )
    metric = evaluation_history.parse_metric(keep_best or evaluation_history.DEFAULT_METRIC)
    names = list_metrics(task, answers=answers)
    if names is not None:
        check_metric(metric.name, names)
    first_step = (start and run_folders.parse_checkpoint_step(start)) or 0
    history = evaluation_history.read_history(model_dir, metric, first_step)
    if not keep_best:
        history.kept_until = None
    elif history.kept_until is None:
        older_steps = run_folders.list_checkpoint_steps(model_dir) if keeps_older else []
        history.kept_until = max(older_steps, default=-1)
    _tracker = Tracker(history, model_dir, patience=patience, keeps_best=bool(keep_best))
    _tracker.begin()
    return _tracker


def make_actions(tracker: Tracker | None) -> dict[str, list[trainer.BaseAction]]:
    """Return T5X's actions after evaluations."""
    if tracker is None:
        return {}
    mode = "INFER_EVAL" if tracker.needs_answers else "TRAIN_EVAL"
    return {mode: [_StopAction(tracker)]}


def measures_concurrently(tracker: Tracker | None) -> bool:
    """Return whether T5X may train on while it computes the metrics of answers."""
    return tracker is None or not tracker.needs_answers


def is_evaluation_overdue(
    tracker: Tracker | None, model_dir: str, eval_period: int, total_steps: int
) -> bool:
    """Return whether the checkpoint that a run resumes from has to be evaluated first."""
    if tracker is None:
        return False
    steps = run_folders.list_checkpoint_steps(model_dir)
    return bool(steps) and tracker.history.is_overdue(steps[-1], eval_period, total_steps)


def match_names(name: str, known: Sequence[str]) -> list[str]:
    """Return the metrics TASK/METRIC that a name METRIC or TASK/METRIC can mean."""
    return [full for full in known if name == full or full.endswith(f"/{name}")]


def check_metric(name: str, known: Sequence[str]) -> None:
    """Check that a name means one of the metrics that exist.

    Args:
      name: METRIC or TASK/METRIC.
      known: the metrics, as TASK/METRIC.

    Raises:
      UserError: it means none, or several.
    """
    matching = match_names(name, known)
    if len(matching) == 1:
        return
    if matching:
        raise UserError(
            f"means {len(matching)} metrics",
            f"{SETTING}={name}",
            f"choose one of: {', '.join(matching)}",
            kind=INVALID,
            value=name,
        )
    raise UserError(
        "there is no such metric",
        f"{SETTING}={name}",
        f"choose one of: {', '.join(known)}",
        kind=UNKNOWN,
        value=name,
    )


def list_metrics(task: Any, *, answers: bool) -> list[str] | None:
    """Return the metrics of an evaluation during training, as TASK/METRIC.

    Args:
      task: the SeqIO task or mixture, or its name; None for an unknown one.
      answers: whether answers are evaluated, too, not only the loss.

    Returns:
      The names; None if they will only be known after the first evaluation.
    """
    if task is None:
        return None
    mixture = seqio.get_mixture_or_task(task) if isinstance(task, str) else task
    names: list[str] = []
    for part in seqio.get_subtasks(mixture):
        names += [f"{part.name}/{name}" for name in LOSS_METRICS]
        for measure in part.metric_fns if answers else ():
            measured = _try_metric(measure)
            if measured is None:
                return None
            names += [f"{part.name}/{name}" for name in measured]
        if answers and len(part.metric_objs) != len(part.metric_fns):
            return None  # Objects do not tell what they compute.
    return names


def _try_metric(measure: Any) -> list[str] | None:
    """Return the names of what a metric function of SeqIO computes.

    It is called for one answer. None is returned if it does not take that.
    """
    for target in ("a", ["a"]):
        try:
            measured = measure([target], ["a"])
            return [
                name
                for name, value in measured.items()
                if isinstance(value, (int, float, np.number, seqio.metrics.Scalar))
            ]
        except Exception:  # noqa: BLE001, S112 (the function is the user's, and may expect anything)
            continue
    return None


def is_older(step: int) -> bool:
    """Return whether a checkpoint stays because it is from before KEEP_BEST was set."""
    return _tracker is not None and _tracker.is_older(step)


def update_result() -> None:
    """Set the line about the best step again, on the first process, after the last save."""
    if _tracker is not None and jax.process_index() == 0:
        _tracker.set_result()


def broadcast_best_step() -> int | None:
    """Return the best step that has a checkpoint, on all processes.

    All have to call it at the same point, when no save is in progress.
    """
    if _tracker is None or not _tracker.keeps_best:
        return None
    best = _tracker.find_best_saved() if jax.process_index() == 0 else None
    number = np.int32(-1 if best is None else best)
    if jax.process_count() > 1:
        number = multihost_utils.broadcast_one_to_all(number)
    return None if int(number) < 0 else int(number)
