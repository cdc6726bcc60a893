"""Paxml's training and evaluation programs, with what they do said: a line for people, JSON for
programs, scalars for TensorBoard.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from paxml import programs

from rosetta.core import gpus, log
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import is_address
from rosetta.health import progress, supervision, supervision_settings
from rosetta.pax.run import flops

EVALUATIONS_FILE = "evaluations.jsonl"
ACCURACY_METRICS = (
    "acc_strict",
    "boolq_acc",
)  # LAMBADA's whole last words, BoolQ's answers: what Praxis calls them
_FP8_COLLECTION = (
    "overwrite_with_gradient"  # the collection of FP8's state, with or without an underscore
)


class TimedInput:
    """An input that notes the time that its batches are waited for, and their shape [rows,
    tokens].
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self.waited = 0.0
        self.shape: tuple[int, int] | None = None
        self._held: Any = None  # a batch that was looked at and not handed out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def look_ahead(self) -> None:
        """Read the next batch, for get_next_padded to return.

        It counts as read in the source's position.
        """
        self._held = self.get_next_padded()

    def get_next_padded(self) -> Any:
        """Return the source's next batch."""
        if self._held is not None:
            batch, self._held = self._held, None
            return batch
        before = time.monotonic()
        batch = self._source.get_next_padded()
        self.waited += time.monotonic() - before
        if self.shape is None:
            self.shape = tuple(batch["ids"].shape)
        return batch


class TrainProgram(programs.SingleTaskTrainProgram):
    """Upstream's, reporting every summary_interval_steps and at the end to stderr,
    JOB/progress.jsonl and TensorBoard.

    Rates are means since the last report, the loss the mean of its steps' losses; the first step
    after a start, which compiles, is in no rate.
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
        super().setup(task, train_input, partitioner, job_log_dir, *args, **kwargs)
        self._train_input = self._timed = TimedInput(train_input)
        self._reporter = (
            progress.ProgressWriter(str(job_log_dir)) if jax.process_index() == 0 else None
        )
        self._report_thread = ThreadPoolExecutor(1)
        self._losses = list[Any]()
        self._counted = 0  # of these losses' steps, those that are in the rate
        self._since: float | None = None  # when the period began; None before the first step
        self._waited = 0.0
        self._work: progress.StepWork | None = None
        self._state: Any = None  # after the last step that was begun
        self._next = -1
        source = supervision.DumpSource(self._describe_batch, self._read_fp8_scales)
        self._health = supervision.Supervisor(
            str(job_log_dir),
            supervision_settings.read_settings(os.environ),
            jax.process_index(),
            jax.process_count(),
            source,
        )

    def should_run(self, state: Any, step: int) -> bool:
        """Return whether a step follows, see upstream's; where the run is to end before its time,
        Paxml saves and ends as at its last step.

        Raises:
          Stopped: it is to end without a checkpoint.
        """
        if self._next < 0 and self._health.goodput:
            self._health.goodput.resume_at(step)
        if not super().should_run(state, step):
            self._health.end_steps()
            return False
        try:
            self._health.before_step(step)
            self._read_batch(step)
        except supervision.RunStopped as stopped:
            if stopped.bad_step:
                raise
            self._health.end_steps()
            return False
        return True

    def _read_batch(self, step: int) -> None:
        """Read a step's batch, which `run` takes right after. Paxml has looked whether to save
        before it asked should_run.

        Raises:
          Stopped: the data does not give it.
        """
        try:
            self._timed.look_ahead()
        except UserError as error:
            raise self._health.stop_for_data(error, step) from error

    def _describe_batch(self, step: int) -> Any:
        told = getattr(self._train_input, "describe_batch", None)
        return told and told(self._next - 1 - step)

    def _read_fp8_scales(self) -> dict[str, list[float]]:
        found = jax.tree_util.tree_leaves_with_path(
            self._state.mdl_vars if self._state is not None else {}
        )
        named = {jax.tree_util.keystr(path): leaf for path, leaf in found}
        return {
            name: np.asarray(leaf.addressable_data(0)).ravel().tolist()
            for name, leaf in named.items()
            if _FP8_COLLECTION in name and "scale" in name
        }

    def run(self, state: Any, step: int) -> Any:
        """Train one step, see upstream's."""
        if (
            self._since is not None and not self._losses
        ):  # evaluation or a checkpoint may have come between
            self._since, self._waited = time.monotonic(), self._timed.waited
            self._health.begin_steps()
        ended = super().run(state, step)
        self._health.track_step(step, functools.partial(_wait_for_loss, ended.loss))
        self._state, self._next = ended.state, ended.new_train_step
        if self._since is None:
            jax.block_until_ready(ended.loss)
            self._since, self._waited, self._counted = time.monotonic(), self._timed.waited, 0
            self._health.begin_steps()
        else:
            self._counted += 1
        self._losses.append(ended.loss)
        last = self._task.train.num_train_steps
        if (
            ended.new_train_step % self._task.train.summary_interval_steps == 0
            or ended.new_train_step >= last
        ):
            self._report(ended.state, ended.new_train_step, last)
        return ended

    def _report(self, state: Any, step: int, last: int) -> None:
        if self._work is None:
            self._work = self._describe_work(state)
        found = (self._losses, self._counted, self._since, self._timed.waited - self._waited)
        if self._reporter:
            self._report_thread.submit(_warn_of_errors, self._print_report, step, last, *found)
        else:
            self._health.publish_input_wait(step, found[-1] / max(self._counted, 1))
        self._losses, self._counted = [], 0
        self._health.end_steps()  # until the next step: evaluation or a checkpoint may come between

    def _describe_work(self, state: Any) -> progress.StepWork:
        rows, length = self._train_unpadded_global_batch_size, (self._timed.shape or (0, 0))[1]
        devices = (
            list(self._partitioner.global_mesh.devices.flat)
            if self._partitioner.global_mesh is not None
            else jax.devices()
        )
        kind = (
            "fp8"
            if any(_FP8_COLLECTION in name for name in state.mdl_vars)
            else jax.numpy.dtype(self._task.model.fprop_dtype or "float32").name
        )
        amount = flops.count_training_flops(flops.read_model_sizes(self._task), length, rows)
        return progress.StepWork(
            amount,
            rows * length,
            len(devices),
            gpus.find_peak_flops(devices[0].device_kind, kind),
        )

    def _print_report(
        self, step: int, last: int, losses: list[Any], counted: int, since: float, waited: float
    ) -> None:
        loss = float(np.mean([_wait_for_loss(each) for each in losses]))  # waits for the steps
        if not counted or self._reporter is None or self._work is None:
            return
        seconds = time.monotonic() - since
        found = progress.make_report(
            self._work,
            step,
            last,
            counted,
            seconds,
            waited,
            loss,
            self._health.collect_report(step, seconds, waited / counted),
        )
        self._reporter.write(found)
        self._write_scalars(found, step)
        self._health.log_scalars(step, found.scalars())

    def _write_scalars(self, found: progress.ProgressReport, step: int) -> None:
        import tensorflow as tf

        with self._train_summary_writer.as_default():
            for name, value in found.scalars().items():
                tf.summary.scalar(f"rosetta/{name}", value, step)

    def shutdown(self) -> None:
        """See upstream's; the last report is said first."""
        self._report_thread.shutdown()
        self._health.close()
        super().shutdown()


def _wait_for_loss(loss: Any) -> float:
    """Wait for a step's loss."""
    return float(np.asarray(loss.addressable_data(0)))


def _warn_of_errors(function: Any, *args: Any) -> None:
    """Call a function in a thread whose errors nobody would see: what it raises ends no run, but is
    said.
    """
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 (progress must not end training)
        log.warn(f"progress: {type(error).__name__}: {error}")


class EvalProgram(programs.SingleTaskEvalProgram):
    """Upstream's, which also says its metrics and appends them to JOB/evaluations.jsonl, and works
    where a process has one device.
    """

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, see upstream's.

        What there is for each example comes as NumPy's arrays: of JAX's, upstream drops the first
        dimension where a process has one device.
        """
        ended = super().eval_step(*args, **kwargs)
        return dataclasses.replace(
            ended,
            per_example_out=jax.tree.map(
                lambda each: np.asarray(each.addressable_data(0)), ended.per_example_out
            ),
        )

    def run(self, state: Any, step: int) -> Any:
        """Evaluate once, see upstream's."""
        with supervision.pause_watchdog():
            ended = super().run(state, step)
        if ended.eval_metrics is not None and jax.process_index() == 0:
            found = make_evaluation_record(
                step, self._name, {name: float(value) for name, value in ended.eval_metrics.items()}
            )
            line = f"step {step:,}  {self._name}  loss {found['loss']:.4f}" + (
                f"  accuracy {100 * found['accuracy']:.2f} %" if "accuracy" in found else ""
            )
            log.info(line, prefix=False, terminal=True)
            _append_evaluation(str(self._job_log_dir), found)
        return ended


def make_evaluation_record(step: int, data: str, metrics: dict[str, float]) -> dict[str, Any]:
    """Return what is kept of an evaluation: Paxml's metrics by their names, of them the loss per
    weighted token, and the task's accuracy if it has one.
    """
    accuracy = next((metrics[name] for name in ACCURACY_METRICS if name in metrics), None)
    return {
        "step": step,
        "data": data,
        "loss": metrics["avg_xent"],
        **({} if accuracy is None else {"accuracy": accuracy}),
        **metrics,
    }


def _append_evaluation(folder: str, found: dict[str, Any]) -> None:
    if is_address(folder):
        return
    path = os.path.join(folder, EVALUATIONS_FILE)
    try:
        progress.append_json_line(
            path, {name: progress.encode_non_finite(value) for name, value in found.items()}
        )
    except OSError as error:
        log.warn(f"{path}: {error.strerror}: {json.dumps(found)}")
