"""Paxml's programs for training and evaluation, which report what they do.

A report is a line for people, JSON for programs, and scalars for TensorBoard. rosetta.pax.train
sets these programs in an experiment that has none of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from paxml import programs

from rosetta.core import gpus, log
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import is_address
from rosetta.health import phases, progress, supervision, supervision_settings
from rosetta.pax.run import flops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVALUATIONS_FILE = "evaluations.jsonl"
# Praxis' names of accuracies: of LAMBADA's whole last words, and of BoolQ's answers.
ACCURACY_METRICS = ("acc_strict", "boolq_acc")
# The collection of FP8 state. Its name may begin with an underscore.
_FP8_COLLECTION = "overwrite_with_gradient"
# Fields of a report, and the summaries of Paxml's learner that have their values. With several
# optimizers, the rate is that of the main one. If each scales its gradients, it has their norm.
_LEARNER_SUMMARIES = {
    "learning_rate": re.compile(r"learning/lr(_main)?_aggregate_scalar"),
    "gradient_norm": re.compile(r"learning/([^/]+/)?raw_grad_norm_aggregate_scalar"),
}


class TimedInput:
    """An input that measures how long its batches are waited for.

    Everything that it does not define itself is that of the inner input.

    Attributes:
      waited: The time that batches were waited for, in seconds.
      shape: The shape [rows, tokens] of a batch; None before the first batch.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.waited = 0.0
        self.shape: tuple[int, int] | None = None
        self._next_batch: Any = None  # a batch that was read ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def look_ahead(self) -> None:
        """Read the next batch, which get_next_padded will return.

        The batch counts as read in the position of the input.
        """
        self._next_batch = self.get_next_padded()

    def get_next_padded(self) -> Any:
        """Return the next batch of the input."""
        if self._next_batch is not None:
            batch, self._next_batch = self._next_batch, None
            return batch
        start = time.monotonic()
        batch = self._source.get_next_padded()
        self.waited += time.monotonic() - start
        if self.shape is None:
            self.shape = tuple(batch["ids"].shape)
        return batch


@dataclasses.dataclass(frozen=True)
class _Period:
    """The steps since the last report.

    Attributes:
      losses: The losses of the steps, on the device.
      learner_values: See _find_learner_values, for each step.
      timed_steps: How many of the steps count in the rate.
      start: When the timed steps began (time.monotonic).
      waited: The time that their batches were waited for, in seconds.
    """

    losses: list[Any]
    learner_values: list[dict[str, list[Any]]]
    timed_steps: int
    start: float
    waited: float


class TrainProgram(programs.SingleTaskTrainProgram):
    """Paxml's program for training, which reports its progress and obeys the supervisor.

    It reports every summary_interval_steps and at the end: to standard error, to
    JOB/progress.jsonl and to TensorBoard. Rates are means since the last report, and the loss is
    the mean of the losses of these steps. The first step after a start, which compiles, is in no
    rate.
    """

    def setup(
        self,
        task: Any,
        train_input: Any,
        partitioner: Any,
        job_log_dir: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Set up the program. The arguments are those of Paxml's method."""
        super().setup(task, train_input, partitioner, job_log_dir, *args, **kwargs)
        self._train_input = self._timed_input = TimedInput(train_input)
        self._progress_writer: progress.ProgressWriter | None = None
        if jax.process_index() == 0:
            self._progress_writer = progress.ProgressWriter(str(job_log_dir))
        self._report_thread = ThreadPoolExecutor(1)
        self._losses = list[Any]()  # of the steps since the last report
        self._learner_values = list[dict[str, list[Any]]]()
        self._timed_steps = 0  # of these steps, those that count in the rate
        self._period_start: float | None = None  # None before the first step
        self._waited_before = 0.0  # the input's waiting time at the start of the period
        self._step_work: progress.StepWork | None = None
        self._last_state: Any = None  # after the last step that was started
        self._next_step = -1
        source = supervision.DumpSource(self._describe_batch, self._read_fp8_scales)
        self._supervisor = supervision.Supervisor(
            str(job_log_dir),
            supervision_settings.read_settings(os.environ),
            jax.process_index(),
            jax.process_count(),
            source,
        )

    def should_run(self, state: Any, step: int) -> bool:
        """Return whether a step follows.

        If the run is to end early, the result is False, and Paxml saves and ends as after its last
        step.

        Args:
          state: The state of the training.
          step: The number of steps that are done.

        Raises:
          RunStopped: The run has to end without a checkpoint.
        """
        if self._next_step < 0:
            phases.begin_phase(f"compiling, then training from step {step:,}")
            if self._supervisor.goodput:
                self._supervisor.goodput.resume_at(step)
        if not super().should_run(state, step):
            self._supervisor.end_steps()
            return False
        try:
            self._supervisor.before_step(step)
            self._read_batch(step)
        except supervision.RunStopped as stopped:
            if stopped.bad_step:
                raise
            self._supervisor.end_steps()
            return False
        return True

    def _read_batch(self, step: int) -> None:
        """Read the batch of a step, which `run` takes right after.

        Paxml decides whether to save before it asks should_run, so no checkpoint comes between
        this and `run`.

        Raises:
          RunStopped: The data has no such batch.
        """
        try:
            self._timed_input.look_ahead()
        except UserError as error:
            raise self._supervisor.stop_for_data(error, step) from error

    def _describe_batch(self, step: int) -> Any:
        """Return what identifies the batch of a step; None if the input cannot tell."""
        describe = getattr(self._train_input, "describe_batch", None)
        return describe and describe(self._next_step - 1 - step)

    def _read_fp8_scales(self) -> dict[str, list[float]]:
        """Return the scales of FP8 after the last step, by the path of the variable."""
        variables = {} if self._last_state is None else self._last_state.mdl_vars
        scales = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
            name = jax.tree_util.keystr(path)
            if _FP8_COLLECTION in name and "scale" in name:
                scales[name] = np.asarray(leaf.addressable_data(0)).ravel().tolist()
        return scales

    def run(self, state: Any, step: int) -> Any:
        """Train one step.

        Args:
          state: The state of the training.
          step: The number of steps that are done.

        Returns:
          The output of Paxml's program.
        """
        if self._period_start is not None and not self._losses:
            # An evaluation or a checkpoint may have come between.
            self._start_period()
        output = super().run(state, step)
        self._supervisor.track_step(step, functools.partial(_wait_for_loss, output.loss))
        self._last_state, self._next_step = output.state, output.new_train_step
        if self._period_start is None:
            jax.block_until_ready(output.loss)
            self._timed_steps = 0
            self._start_period()
        else:
            self._timed_steps += 1
        self._losses.append(output.loss)
        last_step = self._task.train.num_train_steps
        is_due = output.new_train_step % self._task.train.summary_interval_steps == 0
        if is_due or output.new_train_step >= last_step:
            self._report(output.state, output.new_train_step, last_step)
        return output

    def train_step(self, *args: Any) -> Any:
        """Train one step, and keep what the learner says of it. The arguments are Paxml's."""
        result = super().train_step(*args)
        self._learner_values.append(_find_learner_values(result[2].summary_tensors))
        return result

    def _start_period(self) -> None:
        """Start to measure the time of steps, and to watch them."""
        self._period_start = time.monotonic()
        self._waited_before = self._timed_input.waited
        self._supervisor.begin_steps()

    def _report(self, state: Any, step: int, last_step: int) -> None:
        """Report the steps since the last report.

        Args:
          state: The state of the training.
          step: The number of steps that are done.
          last_step: The step at which the run ends.
        """
        if self._step_work is None:
            self._step_work = self._describe_work(state)
        period = _Period(
            self._losses,
            self._learner_values,
            self._timed_steps,
            self._period_start or 0.0,
            self._timed_input.waited - self._waited_before,
        )
        if self._progress_writer:
            self._report_thread.submit(_warn_of_errors, self._print_report, step, last_step, period)
        else:
            self._supervisor.publish_input_wait(step, period.waited / max(period.timed_steps, 1))
        self._losses, self._learner_values, self._timed_steps = [], [], 0
        # Until the next step an evaluation or a checkpoint may come between.
        self._supervisor.end_steps()

    def _describe_work(self, state: Any) -> progress.StepWork:
        """Return the FLOPs and the tokens of a step, and the devices that it runs on."""
        rows = self._train_unpadded_global_batch_size
        length = self._timed_input.shape[1] if self._timed_input.shape else 0
        devices = jax.devices()
        if self._partitioner.global_mesh is not None:
            devices = list(self._partitioner.global_mesh.devices.flat)
        if any(_FP8_COLLECTION in name for name in state.mdl_vars):
            precision = "fp8"
        else:
            precision = jax.numpy.dtype(self._task.model.fprop_dtype or "float32").name
        sizes = flops.read_model_sizes(self._task)
        return progress.StepWork(
            flops.count_training_flops(sizes, length, rows),
            rows * length,
            len(devices),
            gpus.find_peak_flops(devices[0].device_kind, precision),
        )

    def _print_report(self, step: int, last_step: int, period: _Period) -> None:
        """Wait for the steps of a period, and report them."""
        loss = float(np.mean([_wait_for_loss(step_loss) for step_loss in period.losses]))
        if not period.timed_steps or self._progress_writer is None or self._step_work is None:
            return
        seconds = time.monotonic() - period.start
        report = progress.make_report(
            self._step_work,
            step,
            last_step,
            period.timed_steps,
            seconds,
            period.waited,
            loss,
            self._supervisor.collect_report(step, seconds, period.waited / period.timed_steps),
        )
        memory = progress.measure_device_memory(jax.local_devices())
        learner_means = _average_values(period.learner_values)
        report = dataclasses.replace(report, **memory, **learner_means)
        self._progress_writer.write(report)
        self._write_scalars(report, step)
        self._supervisor.log_scalars(step, report.scalars())

    def _write_scalars(self, report: progress.ProgressReport, step: int) -> None:
        """Write the numbers of a report for TensorBoard."""
        import tensorflow as tf

        with self._train_summary_writer.as_default():
            for name, value in report.scalars().items():
                tf.summary.scalar(f"rosetta/{name}", value, step)

    def shutdown(self) -> None:
        """End the program after the last report."""
        self._report_thread.shutdown()
        self._supervisor.close()
        super().shutdown()


def _wait_for_loss(loss: Any) -> float:
    """Return the loss of a step after waiting for the step."""
    return float(np.asarray(loss.addressable_data(0)))


def _find_learner_values(summaries: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of a step by field of a report, from Paxml's summaries of the step.

    Returns:
      The values on the device: the learning rate, and the gradients' norm of each optimizer that
      scales its own.
    """
    values = {}
    for field, pattern in _LEARNER_SUMMARIES.items():
        parts = [value for name, value in summaries.items() if pattern.fullmatch(name)]
        if parts:
            values[field] = parts
    return values


def _average_values(steps: Sequence[Mapping[str, list[Any]]]) -> dict[str, Any]:
    """Return the means over steps of the values that each step has."""
    fields = set.intersection(*map(set, steps)) if steps else set()
    return {
        field: float(np.mean([_join_parts(values[field]) for values in steps]))
        for field in sorted(fields)
    }


def _join_parts(parts: Sequence[Any]) -> float:
    """Return the norm of gradients from the norms of their parts; one part is the value itself."""
    values = [float(np.mean(part.addressable_data(0))) for part in parts]
    return values[0] if len(values) == 1 else float(np.linalg.norm(values))


def _warn_of_errors(function: Any, *args: Any) -> None:
    """Call a function, and warn of its errors.

    In a thread of reports nobody would see an error, and an error must not end the training.
    """
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 (progress must not end training)
        log.warn(f"progress: {type(error).__name__}: {error}")


class EvalProgram(programs.SingleTaskEvalProgram):
    """Paxml's program for evaluation, which reports its metrics.

    It appends the metrics to JOB/evaluations.jsonl. It also works if a process has one device.
    """

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch. The arguments are those of Paxml's method.

        Returns:
          The output of Paxml's method, with values for each example as arrays of NumPy. If they
          are arrays of JAX and a process has one device, Paxml drops their first dimension.
        """
        output = super().eval_step(*args, **kwargs)
        per_example = jax.tree.map(
            lambda array: np.asarray(array.addressable_data(0)), output.per_example_out
        )
        return dataclasses.replace(output, per_example_out=per_example)

    def run(self, state: Any, step: int) -> Any:
        """Evaluate the model once.

        Args:
          state: The state of the training.
          step: The number of steps that are done.

        Returns:
          The output of Paxml's program.
        """
        with supervision.pause_watchdog():
            output = super().run(state, step)
        if output.eval_metrics is not None and jax.process_index() == 0:
            metrics = {name: float(value) for name, value in output.eval_metrics.items()}
            record = make_evaluation_record(step, self._name, metrics)
            line = f"step {step:,}  {self._name}  loss {record['loss']:.4f}"
            if "accuracy" in record:
                line += f"  accuracy {100 * record['accuracy']:.2f} %"
            log.info(line, prefix=False)
            _append_evaluation(str(self._job_log_dir), record)
        return output


def make_evaluation_record(step: int, data: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Return the record of an evaluation for evaluations.jsonl.

    Args:
      step: The number of steps that are done.
      data: The name of the data.
      metrics: Paxml's metrics by name.

    Returns:
      The step, the data, the loss for each weighted token, the accuracy if the task has one, and
      all metrics by Paxml's names.
    """
    record: dict[str, Any] = {"step": step, "data": data, "loss": metrics["avg_xent"]}
    accuracy = next((metrics[name] for name in ACCURACY_METRICS if name in metrics), None)
    if accuracy is not None:
        record["accuracy"] = accuracy
    return {**record, **metrics}


def _append_evaluation(folder: str, record: dict[str, Any]) -> None:
    """Append a record to evaluations.jsonl, if the run's folder is not in an object store."""
    if is_address(folder):
        return
    path = os.path.join(folder, EVALUATIONS_FILE)
    try:
        progress.append_json_line(
            path, {name: progress.encode_non_finite(value) for name, value in record.items()}
        )
    except OSError as error:
        log.warn(f"{path}: {error.strerror}: {json.dumps(record)}")
