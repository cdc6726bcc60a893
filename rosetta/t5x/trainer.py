"""Upstream's trainer, with gradients of several microbatches and FP8 state in one step, and
progress said.
"""

from __future__ import annotations

import functools
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from t5x import metrics as t5x_metrics
from t5x import partitioning as t5x_partitioning
from t5x import trainer

from rosetta.core.errors import INVALID, UserError
from rosetta.health import progress, supervision, supervision_settings
from rosetta.health.finite_check import all_finite
from rosetta.nn import fp8
from rosetta.t5x import (
    checkpoint_manager,
    compile_ahead,
    dataset,
    gradient_reduction,
    partitioning,
)
from rosetta.t5x import step_arithmetic as one_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOSSES = ("loss", "loss_per_nonpadding_target_token")
_SKIPPED_METRIC = "rosetta/skipped"  # the share of steps whose update was left out


def compute_gradients(
    model: Any, params: Any, state: Any, batch: Any, dropout_rng: Any, microbatches: int, spec: Any
) -> tuple[Any, Any, Any]:
    """Return the sum of the gradients over a batch, its metrics, and what FP8 has seen (empty where
    there is none).

    All microbatches read the same FP8 scales, and their largest magnitudes are combined.

    The batch's arrays are [batch, ...], which divides by `microbatches`; `spec` is its layout over
    the mesh, None where it has none.
    """

    def loss(variables: tuple[Any, Any], part: Any, rng: Any) -> Any:
        return (
            model.loss_fn(variables[0], part, rng, variables[1])
            if variables[1]
            else model.loss_fn(variables[0], part, rng)
        )

    graded = jax.value_and_grad(loss, has_aux=True)
    if microbatches <= 1:
        (_, metrics), (of_params, seen) = graded((params, state), batch, dropout_rng)
        return of_params, metrics, seen

    rows = next(iter(batch.values())).shape[0]
    if rows % microbatches:
        whose = "a batch" if spec is not None else "a group of devices, as gradient_dtype is set,"
        raise UserError(
            f"the {rows} rows of {whose} do not divide into {microbatches} microbatches",
            "Trainer.num_microbatches",
            f"give a divisor of {rows}",
            kind=INVALID,
            value=microbatches,
        )

    def one(index: Any, rng: Any) -> tuple[Any, Any, Any]:
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
        (_, metrics), (of_params, seen) = graded((params, state), part, rng)
        return of_params, metrics, seen

    def body(index: Any, carry: Any) -> Any:
        rng, total, metrics, seen = carry
        rng, own = jax.random.split(rng)
        of_params, found, after = one(index, own)
        total = jax.tree.map(jnp.add, total, of_params)
        metrics = jax.lax.cond(
            index == 0, lambda: found, lambda: trainer.merge_metrics(metrics, found)
        )
        return rng, total, metrics, fp8.combine_microbatches(seen, after)

    _, shape, _ = jax.eval_shape(one, 0, dropout_rng)
    empty = {key: t5x_metrics.shape_obj_to_defined_obj(value) for key, value in shape.items()}
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    unseen = jax.tree.map(
        jnp.zeros_like, state
    )  # nothing that is seen, neither scale nor magnitude, is below zero
    _, total, metrics, seen = jax.lax.fori_loop(
        0, microbatches, body, (dropout_rng, zeros, empty, unseen)
    )
    return total, metrics, seen


class Trainer(trainer.Trainer):
    """Upstream's Trainer with the same arguments and two more. Refuses FP8 on cards that have none.

    Args:
      total_steps: of the run, for the time that is left.
      gradient_dtype: add gradients up over the devices once a step, in this type
        (rosetta.t5x.gradient_reduction); None: as XLA does.
    """

    train_state: Any  # upstream's property

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
        self._total_steps = total_steps
        self._folder = kwargs.get("summary_dir")
        self._settings = supervision_settings.read_settings(os.environ)
        self._health: supervision.Supervisor | None = (
            None  # from the first step on: another trainer may compile ahead
        )
        self._newest: Any = None  # the train state after the last step that was begun
        self._at = 0
        self._program: Any = None  # the compiled step
        self._reporter = (
            progress.ProgressWriter(kwargs.get("summary_dir")) if jax.process_index() == 0 else None
        )
        self._said = ThreadPoolExecutor(1)
        self._reports: list[Future[None]] = []
        self._work: Any = None

    def close(self) -> None:
        """Wait for the last report and close as upstream's does.

        What went wrong in a report is raised.
        """
        if self._health:
            self._health.close()
        self._said.shutdown()
        super().close()
        self._raise_from_reports()

    def _raise_from_reports(self) -> None:
        done, self._reports = (
            [each for each in self._reports if each.done()],
            [each for each in self._reports if not each.done()],
        )
        for each in done:
            each.result()

    def compile_train(self, batch: Any) -> None:
        """Compile the training step, unless it has been while the train state was made."""
        before = time.monotonic()
        ready = compile_ahead.take_compiled_step(
            model=self._model, state=self.train_state, batch=batch, key=self._base_rng
        )
        if ready is None:
            super().compile_train(batch)
            return
        self._compiled_train_step = ready
        self.train_metrics_manager.write_scalar(
            "timing/compilation_seconds", time.monotonic() - before, self.train_state.step
        )  # that it was waited for

    def train(self, batch_iter: Any, num_steps: int, start_step: int | None = None) -> Any:
        """Train as upstream's does, on batch s at step s, and report. What went wrong in an earlier
        report is raised.

        Raises:
          PreemptionError: the run is to end here, and T5X to save a checkpoint first.
          Stopped: it is to end without one.
        """
        self._raise_from_reports()
        start = int(self.train_state.step if start_step is None else start_step)
        dataset.align_iterator(batch_iter, start)
        if self._health is None:
            self._begin(start)
        health: Any = self._health
        self._newest = None
        before, waited = time.monotonic(), dataset.get_wait_seconds()
        health.begin()
        try:
            future = super().train(self._seen(batch_iter, start), num_steps, start)
        except supervision.RunStopped as stopped:
            if stopped.bad:
                raise
            self._said.shutdown()  # what is reported is said before the end is
            self.train_state = self.train_state if self._newest is None else self._newest
            raise trainer.PreemptionError(stopped.reason) from stopped
        finally:
            health.pause()
        if num_steps:
            held = (dataset.get_wait_seconds() - waited) / num_steps
            if self._reporter:
                self._reports.append(
                    self._said.submit(
                        self._report, future, start + num_steps, num_steps, before, waited
                    )
                )
            else:
                health.tell(start + num_steps, held)
        return future

    def _begin(self, start: int) -> None:
        health = self._health = supervision.Supervisor(
            self._folder,
            self._settings,
            jax.process_index(),
            jax.process_count(),
            supervision.DumpSource(dataset.describe_batch, self._scales),
        )
        if health.goodput:
            health.goodput.begins(start)
        given = self._program = self._compiled_train_step or self._partitioned_train_step

        def step(train_state: Any, batch: Any) -> Any:
            self._newest, metrics = given(train_state, batch)
            health.given(self._at, functools.partial(self._loss, metrics))
            return self._newest, metrics

        self._compiled_train_step = step

    def _loss(self, metrics: Mapping[str, Any]) -> float:
        """Wait for a step's loss; a step whose update was left out counts as one without."""
        found = {}
        for name in (*_LOSSES, _SKIPPED_METRIC):
            if name in metrics:
                here = jax.tree.map(
                    lambda leaf: (
                        np.asarray(leaf.addressable_data(0))
                        if isinstance(leaf, jax.Array)
                        else leaf
                    ),
                    metrics[name],
                )
                found[name] = float(here.compute_value().value)
        if found.pop(_SKIPPED_METRIC, 0.0):
            return math.nan
        loss = one_step.compute_token_loss(found, self._model._loss_normalizing_factor)  # noqa: SLF001
        return next(iter(found.values())) if loss is None else loss

    def _scales(self) -> dict[str, list[float]]:
        state = self._newest or self.train_state
        flat = (
            flatten_dict(flax.core.unfreeze(state.flax_mutables), sep="/")
            if state.flax_mutables
            else {}
        )
        return {
            name: np.asarray(leaf.addressable_data(0)).ravel().tolist()
            for name, leaf in flat.items()
            if name.endswith("_scale")
        }

    def _seen(self, batches: Any, start: int) -> Iterator[Any]:
        """Yield the same batches, one of which was looked at for its shapes.

        Between them the run may be stopped, or saved.
        """
        self._at = start
        self._between()
        remaining = iter(batches)
        while True:
            try:
                batch = next(remaining)
            except StopIteration:
                return
            except UserError as error:
                health: Any = self._health
                raise health.stop_for_data(error, self._at) from error
            if self._work is None:
                shares = self._partitioner.data_shards if jax.process_count() > 1 else 1
                shapes = {
                    key: (
                        value.shape[0] if isinstance(value, jax.Array) else value.shape[0] * shares,
                        *value.shape[1:],
                    )
                    for key, value in batch.items()
                }
                self._work = one_step.describe_work(
                    self._model.config, shapes, list(self._partitioner.mesh.devices.flat)
                )
            yield batch
            self._at += 1
            self._between()

    def _between(self) -> None:
        health: Any = self._health
        health.before(
            self._at, (lambda: self._program) if hasattr(self._program, "as_text") else None
        )
        if health.wants_checkpoint(self._at) and self._newest is not None:
            health.pause()
            checkpoint_manager.save_extra_checkpoint(self._newest)
            health.begin()

    def _report(self, future: Any, step: int, steps: int, before: float, waited: float) -> None:
        values = future.result()  # when the steps are done
        rate = float(values["timing/steps_per_second"].value)
        losses = {name: float(values[name].value) for name in _LOSSES if name in values}
        loss = one_step.compute_token_loss(losses, self._model._loss_normalizing_factor)  # noqa: SLF001
        seconds = steps / rate if rate else time.monotonic() - before
        held = dataset.get_wait_seconds() - waited
        health: Any = self._health
        found = progress.make_report(
            self._work,
            step,
            self._total_steps,
            steps,
            seconds,
            held,
            loss,
            health.report(step, seconds, held / steps),
        )
        for name, value in found.scalars().items():
            self.train_metrics_manager.write_scalar(f"rosetta/{name}", value, step)
        if self._reporter:
            self._reporter.say(found)
        health.publish(step, found.scalars())

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
        def step(train_state: Any, batch: Mapping[str, Any]) -> tuple[Any, Any]:
            rate = self._learning_rate_fn(train_state.step)
            state = flax.core.unfreeze(train_state.flax_mutables)
            spec = None if self._gradient_dtype else self._partitioner.data_partition_spec

            def graded(params: Any, state: Any, batch: Any, rng: Any) -> Any:
                return compute_gradients(
                    self._model, params, state, batch, rng, self._num_microbatches or 1, spec
                )

            if self._gradient_dtype:
                graded = gradient_reduction.reduce_over_data(
                    graded, self._partitioner, self._gradient_dtype, self._train_state_axes.params
                )
            found, metrics, seen = graded(
                train_state.params, state, batch, self._get_step_rng(train_state.step)
            )
            kept = (
                {
                    "flax_mutables": flax.core.freeze(
                        fp8.advance_states(state, seen, train_state.step)
                    )
                }
                if seen
                else None
            )
            after, metrics = trainer.apply_grads(
                train_state,
                found,
                dict(metrics),
                rate,
                self._weight_metrics_computer,
                other_state_variables=kept,
            )
            if self._settings.on_bad_loss == "skip":
                after, fine = _select_finite_update(found, after, train_state)
                metrics = {
                    **metrics,
                    _SKIPPED_METRIC: t5x_metrics.AveragePerStep.from_model_output(
                        jnp.where(fine, 0.0, 1.0)
                    ),
                }
            return after, metrics

        return self._partitioner.partition(
            step,
            in_axis_resources=(self._train_state_axes, self._partitioner.data_partition_spec),
            out_axis_resources=(self._train_state_axes, None),
            donate_argnums=(0,),
        )


def _select_finite_update(found: Any, after: Any, before: Any) -> tuple[Any, Any]:
    """Return the train state after a step whose gradients are finite; of another, the one before
    it, with the step counted. And which it is, bool [].
    """
    fine = all_finite(found)
    return jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, before).replace_step(
        after.step
    ), fine
