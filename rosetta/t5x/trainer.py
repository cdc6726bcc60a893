"""T5X's trainer with FP8, loss scaling, microbatches, health checks and progress reports.

The gin files name Trainer.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import clu.metrics
import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from t5x import metrics as t5x_metrics
from t5x import partitioning as t5x_partitioning
from t5x import trainer

from rosetta.core.errors import INVALID, UserError
from rosetta.health import phases, progress, run_results, supervision, supervision_settings
from rosetta.health.finite_check import all_finite
from rosetta.nn import fp8
from rosetta.t5x import (
    best_checkpoint,
    checkpoint_manager,
    compile_ahead,
    dataset,
    gradient_norm,
    gradient_reduction,
    loss_scale,
    partial_optimizer,
    partitioning,
    step_metrics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOSSES = ("loss", "loss_per_nonpadding_target_token")
_SKIPPED_METRIC = "rosetta/skipped"  # the share of steps without an update
_GRADIENT_NORM = "rosetta/gradient_norm"  # before the gradients are clipped
_LOSS_SCALE = "rosetta/loss_scale"  # of the last step
_OVERFLOWS = "rosetta/overflows"  # the share of steps that were left out to halve the loss scale


def compute_gradients(
    model: Any,
    params: Any,
    state: Any,
    batch: Any,
    dropout_rng: Any,
    microbatches: int,
    spec: Any,
    frozen: Any = None,
) -> tuple[Any, Any, Any]:
    """Compute the gradients of a batch.

    All microbatches use the same FP8 scales. Their largest magnitudes are combined. A loss scale
    multiplies the loss, and the gradients are divided by it.

    Args:
      model: the model.
      params: its parameters that are trained.
      state: the FP8 state and the state of the loss scale; empty without both.
      batch: arrays [batch, ...] by name.
      dropout_rng: the random key of the dropout masks.
      microbatches: into how many parts the batch is divided.
      spec: the layout of the batch over the mesh; None inside a group of devices.
      frozen: its parameters that are not trained; empty or None for none.

    Returns:
      The sum of the gradients over the batch, the metrics of the batch, and the FP8 statistics
      (empty without FP8).

    Raises:
      UserError: the batch does not divide into the microbatches.
    """
    fp8_state = {name: value for name, value in state.items() if name != loss_scale.COLLECTION}
    scaling = state.get(loss_scale.COLLECTION)
    scale = None if scaling is None else scaling[loss_scale.SCALE]

    def loss(variables: tuple[Any, Any], part: Any, rng: Any) -> Any:
        params, fp8_state = variables
        if frozen:
            params = partial_optimizer.merge_params(params, frozen)
        mutables = (fp8_state,) if fp8_state else ()
        value, metrics = model.loss_fn(params, part, rng, *mutables)
        return value if scale is None else value * scale, metrics

    def divide_by_scale(gradients: Any) -> Any:
        if scale is None:
            return gradients
        return jax.tree.map(lambda leaf: leaf / scale, gradients)

    loss_and_gradients = jax.value_and_grad(loss, has_aux=True)
    if microbatches <= 1:
        (_, metrics), (total, statistics) = loss_and_gradients(
            (params, fp8_state), batch, dropout_rng
        )
        return divide_by_scale(total), metrics, statistics

    rows = next(iter(batch.values())).shape[0]
    if rows % microbatches:
        owner = "a batch" if spec is not None else "a group of devices, as gradient_dtype is set,"
        raise UserError(
            f"the {rows} rows of {owner} do not divide into {microbatches} microbatches",
            "Trainer.num_microbatches",
            f"give a divisor of {rows}",
            kind=INVALID,
            value=microbatches,
        )

    def run_microbatch(index: Any, rng: Any) -> tuple[Any, Any, Any]:
        size = rows // microbatches
        part = {
            key: jax.lax.dynamic_slice_in_dim(value, index * size, size)
            for key, value in batch.items()
        }
        if spec is not None:
            part = {
                key: t5x_partitioning.with_sharding_constraint(value, spec)
                for key, value in part.items()
            }
        (_, metrics), (part_gradients, statistics) = loss_and_gradients(
            (params, fp8_state), part, rng
        )
        return part_gradients, metrics, statistics

    def body(index: Any, carry: Any) -> Any:
        rng, total, metrics, statistics = carry
        rng, part_rng = jax.random.split(rng)
        part_gradients, part_metrics, part_statistics = run_microbatch(index, part_rng)
        total = jax.tree.map(jnp.add, total, part_gradients)
        metrics = jax.lax.cond(
            index == 0, lambda: part_metrics, lambda: trainer.merge_metrics(metrics, part_metrics)
        )
        return rng, total, metrics, fp8.combine_microbatches(statistics, part_statistics)

    _, metric_shapes, _ = jax.eval_shape(run_microbatch, 0, dropout_rng)
    no_metrics = {
        key: t5x_metrics.shape_obj_to_defined_obj(value) for key, value in metric_shapes.items()
    }
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    # Statistics are scales and magnitudes, of which none is negative.
    no_statistics = jax.tree.map(jnp.zeros_like, fp8_state)
    _, total, metrics, statistics = jax.lax.fori_loop(
        0, microbatches, body, (dropout_rng, zeros, no_metrics, no_statistics)
    )
    return divide_by_scale(total), metrics, statistics


# Field of a progress report -> the metric of the training step.
_REPORTED_METRICS = {
    "learning_rate": "learning_rate",
    "gradient_norm": _GRADIENT_NORM,
    "loss_scale": _LOSS_SCALE,
}
# Name of a value of an evaluation -> T5X's metric. The accuracy is that of the next token.
_EVALUATION_METRICS = {"token_accuracy": "accuracy"}


class Trainer(trainer.Trainer):
    """T5X's Trainer with two more arguments.

    Args:
      *args: as of T5X's Trainer.
      total_steps: the steps of the run, from which the remaining time is estimated.
      gradient_dtype: the type in which gradients are added up over the devices once a step, see
        rosetta.t5x.gradient_reduction; None leaves the sums to XLA.
      **kwargs: as of T5X's Trainer.

    Raises:
      UserError: FP8 is set and a GPU has no FP8, or a size of the network does not divide over the
        devices.
    """

    train_state: Any  # a property of T5X's class

    def __init__(
        self,
        *args: Any,
        total_steps: int | None = None,
        gradient_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        partitioning.check_network_sizes(self._model.config, self._partitioner)
        gradient_reduction.check_support(
            gradient_dtype,
            self._model._loss_normalizing_factor,  # noqa: SLF001
            self._partitioner,
            self._model.config,
        )
        self._gradient_dtype = gradient_dtype
        if self._model.config.fp8 != "off":
            fp8.require_fp8(list(self._partitioner.mesh.devices.flat))
        tracker = best_checkpoint.get_tracker()
        # T5X asks this before each epoch. It sets it after each evaluation.
        self.stop_training = tracker is not None and tracker.has_to_stop
        self._total_steps = total_steps
        self._folder = kwargs.get("summary_dir")
        self._settings = supervision_settings.read_settings(os.environ)
        # Set at the first step: compile_ahead also makes a trainer, which never trains.
        self._health: supervision.Supervisor | None = None
        self._newest_state: Any = None  # the train state after the last step that was started
        self._current_step = 0
        self._program: Any = None  # the compiled step
        self._reporter = (
            progress.ProgressWriter(kwargs.get("summary_dir")) if jax.process_index() == 0 else None
        )
        self._report_executor = ThreadPoolExecutor(1)
        self._reports: list[Future[None]] = []
        self._work: Any = None

    def close(self) -> None:
        """Wait for the last report, close T5X's trainer, and raise the error of a failed report."""
        if self._health:
            self._health.close(self._report_executor.shutdown)
        self._report_executor.shutdown()
        super().close()
        self._raise_from_reports()

    def _raise_from_reports(self) -> None:
        """Raise the error of a report that failed, and forget the reports that are done."""
        done = [report for report in self._reports if report.done()]
        self._reports = [report for report in self._reports if report not in done]
        for report in done:
            report.result()

    def compile_train(self, batch: Any) -> None:
        """Compile the training step, unless compile_ahead has compiled it already."""
        phases.begin_phase("compiling the training step")
        started = time.monotonic()
        compiled_step = compile_ahead.take_compiled_step(
            model=self._model, state=self.train_state, batch=batch, key=self._base_rng
        )
        if compiled_step is None:
            super().compile_train(batch)
            return
        self._compiled_train_step = compiled_step
        # The time that the run waited for the compilation.
        self.train_metrics_manager.write_scalar(
            "timing/compilation_seconds", time.monotonic() - started, self.train_state.step
        )

    def train(self, batch_iter: Any, num_steps: int, start_step: int | None = None) -> Any:
        """Train for a number of steps, on batch s at step s, and report on them.

        Args:
          batch_iter: T5X's iterator of batches.
          num_steps: the number of steps.
          start_step: the first step; None for the step of the train state.

        Returns:
          T5X's future of the metrics.

        Raises:
          PreemptionError: the run has to end, after T5X has saved a checkpoint.
          Stopped: the run has to end without a checkpoint.
          UserError: an earlier report failed, or the data is damaged.
        """
        self._raise_from_reports()
        start = int(self.train_state.step if start_step is None else start_step)
        dataset.align_iterator(batch_iter, start)
        if self._health is None:
            self._start_health(start)
            goal = f" to {self._total_steps:,}" if self._total_steps else ""
            phases.begin_phase(f"training from step {start:,}{goal}")
        health: Any = self._health
        self._newest_state = None
        started = time.monotonic()
        waited_before = dataset.get_wait_seconds()
        health.begin_steps()
        try:
            future = super().train(self._follow_batches(batch_iter, start), num_steps, start)
        except supervision.RunStopped as stopped:
            if stopped.bad_step:
                raise
            self._report_executor.shutdown()  # finished reports come before the message of the end
            if self._newest_state is not None:
                self.train_state = self._newest_state
            raise trainer.PreemptionError(stopped.reason) from stopped
        finally:
            health.end_steps()
        if not num_steps:
            return future
        end = start + num_steps
        if self._reporter:
            report = self._report_executor.submit(
                self._report, future, end, num_steps, started, waited_before
            )
            self._reports.append(report)
        else:
            waited = dataset.get_wait_seconds() - waited_before
            health.publish_input_wait(end, waited / num_steps)
        return future

    def _start_health(self, start: int) -> None:
        """Start the health checks of the run, and have every step handed to them."""
        health = self._health = supervision.Supervisor(
            self._folder,
            self._settings,
            jax.process_index(),
            jax.process_count(),
            supervision.DumpSource(dataset.describe_batch, self._read_fp8_scales),
        )
        if health.goodput:
            health.goodput.resume_at(start)
        program = self._program = self._compiled_train_step or self._partitioned_train_step

        def step(train_state: Any, batch: Any) -> Any:
            self._newest_state, metrics = program(train_state, batch)
            health.track_step(self._current_step, functools.partial(self._read_loss, metrics))
            return self._newest_state, metrics

        self._compiled_train_step = step

    def eval(self, batch_iters: Mapping[str, Any]) -> Any:
        """Evaluate the model on data sets, as T5X's method does, and report the results."""
        names = ", ".join(batch_iters)
        step = int(self.train_state.step)
        phases.begin_phase(f"evaluating at step {step:,}: {names}")
        started = time.monotonic()
        summaries = super().eval(batch_iters)
        seconds = time.monotonic() - started
        if jax.process_index() == 0:
            for name, summary in summaries.items():
                values = self._select_evaluation_values(summary)
                progress.write_evaluation(self._reporter, step, name, values, seconds)
                if tracker := best_checkpoint.get_tracker():
                    tracker.record(step, name, values)
        return summaries

    def _select_evaluation_values(self, summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of an evaluation to report: the loss of each real token, ..."""
        losses = {name: float(summary[name].value) for name in _LOSSES if name in summary}
        loss = step_metrics.compute_token_loss(losses, self._model._loss_normalizing_factor)  # noqa: SLF001
        values = {} if loss is None else {"loss": loss}
        for shown, name in _EVALUATION_METRICS.items():
            if name in summary:
                values[shown] = float(summary[name].value)
        return values

    def _read_loss(self, metrics: Mapping[str, Any]) -> float:
        """Wait for a step, and return its loss; NaN if its update was skipped."""
        values: dict[str, float] = {}
        for name in (*_LOSSES, _SKIPPED_METRIC):
            if name in metrics:
                metric = jax.tree.map(_read_local, metrics[name])
                values[name] = float(metric.compute_value().value)
        if values.pop(_SKIPPED_METRIC, 0.0):
            return math.nan
        loss = self._compute_token_loss(values)
        return next(iter(values.values())) if loss is None else loss

    def _compute_token_loss(self, values: Mapping[str, float]) -> float | None:
        """Return the loss per token of training steps from T5X's metrics, None if they lack it."""
        factor = self._model._loss_normalizing_factor  # noqa: SLF001
        return step_metrics.compute_token_loss(values, factor, self._num_microbatches or 1)

    def _read_fp8_scales(self) -> dict[str, list[float]]:
        """Return the FP8 scales of the newest train state, by their names in it."""
        state = self._newest_state or self.train_state
        if not state.flax_mutables:
            return {}
        leaves = flatten_dict(flax.core.unfreeze(state.flax_mutables), sep="/")
        return {
            name: np.asarray(leaf.addressable_data(0)).ravel().tolist()
            for name, leaf in leaves.items()
            if name.endswith("_scale")
        }

    def _follow_batches(self, batches: Any, start: int) -> Iterator[Any]:
        """Yield the batches, and let the health checks act between the steps.

        The shapes of the first batch give the work of a step.
        """
        self._current_step = start
        self._act_between_steps()
        remaining = iter(batches)
        while True:
            try:
                batch = next(remaining)
            except StopIteration:
                return
            except UserError as error:
                health: Any = self._health
                raise health.stop_for_data(error, self._current_step) from error
            if self._work is None:
                self._work = step_metrics.compute_step_work(
                    self._model.config,
                    self._find_global_shapes(batch),
                    list(self._partitioner.mesh.devices.flat),
                )
            yield batch
            self._current_step += 1
            self._act_between_steps()

    def _find_global_shapes(self, batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the global batch; NumPy arrays are this process's part of it."""
        shares = self._partitioner.data_shards if jax.process_count() > 1 else 1
        shapes = {}
        for name, array in batch.items():
            rows = array.shape[0] if isinstance(array, jax.Array) else array.shape[0] * shares
            shapes[name] = (rows, *array.shape[1:])
        return shapes

    def _act_between_steps(self) -> None:
        """Let the health checks stop the run, or save a checkpoint that they ask for."""
        health: Any = self._health
        program = self._program
        health.before_step(
            self._current_step, (lambda: program) if hasattr(program, "as_text") else None
        )
        if health.is_checkpoint_due(self._current_step) and self._newest_state is not None:
            health.end_steps()
            checkpoint_manager.save_extra_checkpoint(self._newest_state)
            health.begin_steps()

    def _report(
        self, future: Any, step: int, steps: int, started: float, waited_before: float
    ) -> None:
        """Wait for the last of some steps, then log and publish their loss and speed.

        Args:
          future: T5X's future of their metrics.
          step: the step after the last of them.
          steps: how many they are.
          started: when they started, by time.monotonic().
          waited_before: the seconds that the run had waited for data until then.
        """
        values = future.result()
        rate = float(values["timing/steps_per_second"].value)
        losses = {name: float(values[name].value) for name in _LOSSES if name in values}
        loss = self._compute_token_loss(losses)
        seconds = steps / rate if rate else time.monotonic() - started
        waited = dataset.get_wait_seconds() - waited_before
        health: Any = self._health
        report = progress.make_report(
            self._work,
            step,
            self._total_steps,
            steps,
            seconds,
            waited,
            loss,
            health.collect_report(step, seconds, waited / steps),
        )
        measured: dict[str, Any] = {
            field: float(values[name].value)
            for field, name in _REPORTED_METRICS.items()
            if name in values
        }
        if _OVERFLOWS in values:
            measured["overflows"] = round(float(values[_OVERFLOWS].value) * steps)
        measured |= progress.measure_device_memory(jax.local_devices())
        report = dataclasses.replace(report, **measured)
        run_results.set_result("training", report.describe_end())
        for name, value in report.scalars().items():
            self.train_metrics_manager.write_scalar(f"rosetta/{name}", value, step)
        if self._reporter:
            self._reporter.write(report)
        health.log_scalars(step, report.scalars())

    def _compute_gradients(self, params: Any, state: Any, batch: Any, rng: Any) -> Any:
        """Return what compute_gradients returns, for the parameters that are trained.

        Args:
          params: all parameters.
          state: as of compute_gradients.
          batch: arrays [batch, ...] by name.
          rng: the random key of the dropout masks.
        """
        optimizer = self._model.optimizer_def
        spec = None if self._gradient_dtype else self._partitioner.data_partition_spec

        def compute(trained: Any, frozen: Any, state: Any, batch: Any, rng: Any) -> Any:
            microbatches = self._num_microbatches or 1
            return compute_gradients(
                self._model, trained, state, batch, rng, microbatches, spec, frozen
            )

        if self._gradient_dtype:
            axes, _ = partial_optimizer.split_params(optimizer, self._train_state_axes.params)
            compute = gradient_reduction.reduce_over_data(
                compute, self._partitioner, self._gradient_dtype, axes
            )
        trained, frozen = partial_optimizer.split_params(optimizer, params)
        return compute(trained, frozen, state, batch, rng)

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
        """The training step: (train state, batch) -> (train state, metrics)."""

        def step(train_state: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
            rate = self._learning_rate_fn(train_state.step)
            state = flax.core.unfreeze(train_state.flax_mutables)
            gradients, metrics, statistics = self._compute_gradients(
                train_state.params, state, batch, self._get_step_rng(train_state.step)
            )
            layouts, _ = partial_optimizer.split_params(
                self._model.optimizer_def, self._train_state_axes.params
            )
            norm = gradient_norm.compute_global_norm(gradients, layouts, self._partitioner.mesh)
            with gradient_norm.give_norm(norm):
                after, metrics = trainer.apply_grads(
                    train_state,
                    gradients,
                    dict(metrics),
                    rate,
                    self._weight_metrics_computer,
                    other_state_variables=_make_other_variables(
                        state, statistics, train_state.step
                    ),
                )
            metrics = {
                **metrics,
                _GRADIENT_NORM: t5x_metrics.AveragePerStep.from_model_output(norm),
            }
            if loss_scale.COLLECTION in state or self._settings.on_bad_loss == "skip":
                after, skip_metrics = _skip_overflow(gradients, norm, after, train_state)
                metrics |= skip_metrics
            return after, metrics

        return self._partitioner.partition(
            step,
            in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
            out_axis_resources=(self._train_state_axes, None),
            donate_argnums=(0,),
        )


def _make_other_variables(state: Any, statistics: Any, step: Any) -> dict[str, Any] | None:
    """Return the mutable variables after a step, as T5X's apply_grads takes them; None for none.

    The loss scale is still that of the step.

    Args:
      state: the mutable variables of the step.
      statistics: the FP8 statistics of the step; empty without FP8.
      step: its number.
    """
    scaling = {name: value for name, value in state.items() if name == loss_scale.COLLECTION}
    new_state = scaling
    if statistics:
        fp8_state = {name: value for name, value in state.items() if name not in scaling}
        new_state = {**fp8.advance_states(fp8_state, statistics, step), **scaling}
    return {"flax_mutables": flax.core.freeze(new_state)} if new_state else None


def _average(flag: Any) -> Any:
    """Return the metric of the share of steps in which a flag, bool [], is set."""
    return t5x_metrics.AveragePerStep.from_model_output(jnp.where(flag, 1.0, 0.0))


def _read_local(leaf: Any) -> Any:
    """Return an array of JAX as this process's NumPy array, and anything else unchanged."""
    return np.asarray(leaf.addressable_data(0)) if isinstance(leaf, jax.Array) else leaf


def _select_finite_update(gradients: Any, after: Any, before: Any) -> tuple[Any, Any]:
    """Return the train state after a step, and whether the step's gradients are finite, bool [].

    If they are not finite, the state is the one before the step, with the step counted.
    """
    is_finite = all_finite(gradients)
    chosen = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, before)
    return chosen.replace_step(after.step), is_finite


def _skip_overflow(
    gradients: Any, norm: Any, after: Any, before: Any
) -> tuple[Any, dict[str, Any]]:
    """Leave out the update of a step whose gradients are not finite, and change the loss scale.

    Args:
      gradients: the gradients of the step.
      norm: their global norm. With a loss scale, the reported mean is over finite steps.
      after: the train state after the step.
      before: that before the step.

    Returns:
      The train state, and metrics of the step. A step that overflows is bad unless a smaller loss
      scale may help.
    """
    after, is_finite = _select_finite_update(gradients, after, before)
    if loss_scale.COLLECTION not in before.flax_mutables:
        return after, {_SKIPPED_METRIC: _average(~is_finite)}
    scaling = before.flax_mutables[loss_scale.COLLECTION]
    changed = loss_scale.advance_state(scaling, is_finite)
    after = after.replace_flax_mutables(
        flax.core.freeze({**after.flax_mutables, loss_scale.COLLECTION: changed})
    )
    is_smallest = scaling[loss_scale.SCALE] <= loss_scale.SMALLEST_SCALE
    return after, {
        _GRADIENT_NORM: clu.metrics.Average.from_model_output(norm[None], mask=is_finite[None]),
        _LOSS_SCALE: clu.metrics.LastValue.from_model_output(changed[loss_scale.SCALE][None]),
        _OVERFLOWS: _average(~is_finite),
        _SKIPPED_METRIC: _average(~is_finite & is_smallest),
    }
