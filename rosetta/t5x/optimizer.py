"""AdamW that follows the trainer's learning rate, with the state that upstream's own AdamW has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
from t5x import optimizers

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScheduledOptimizer(optimizers.OptaxWrapper):
    """An optax optimizer of rate 1 whose update is multiplied by the rate the trainer hands it for
    its step.

    T5X's own wrapper drops that rate: an optax optimizer keeps the one it was built with, and the
    schedule of the run shows in the log only. A schedule inside optax would count steps from where
    its state began instead of from `train_state.step`, so that finetuning without the old optimizer
    state would start its schedule elsewhere.
    """

    def apply_gradient(
        self, hyper_params: Any, params: Any, state: Any, grads: Any
    ) -> tuple[Any, Any]:
        """Return the new parameters and the new state.

        Raises:
          ValueError: the caller gave no learning rate.
        """
        rate = hyper_params.learning_rate
        if rate is None:
            raise ValueError(
                "apply_gradient needs learning_rate: this optimizer has none of its own"
            )
        updates, inner = self.optax_optimizer.update(grads, state.param_states, params)
        updates = jax.tree.map(lambda update: rate * update, updates)
        return optax.apply_updates(params, updates), optimizers.OptimizerState(
            step=state.step + 1, param_states=inner
        )


def make_scheduled_optimizer(
    transformations: Sequence[optax.GradientTransformation],
) -> ScheduledOptimizer:
    """Return a chain of optax transformations, built for a rate of 1, that follows the trainer's
    learning rate.
    """
    return ScheduledOptimizer(optax.chain(*transformations))


def adamw(
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
) -> ScheduledOptimizer:
    """Return AdamW (Loshchilov and Hutter, 2019) after clipping the gradient's global norm.

    Its state is that of t5x.optimizers.chain([clip_by_global_norm, adamw]) with a constant rate, so
    that checkpoints written with upstream's AdamW restore and the other way round.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: times the learning rate and the parameter, subtracted in each step.
      clip_norm: the largest global norm a gradient keeps; None clips nothing, and has another state
        tree.
    """
    steps = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    return make_scheduled_optimizer(
        [*steps, optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)]
    )


def decay_per_step(steps: int, warmup_steps: int, last: float) -> float:
    """Return `decay_factor` of T5X's linear_decay: the share of the peak lost in each step after
    the warm-up.

    Args:
      steps: the schedule's length, warm-up included.
      warmup_steps: steps up to the peak.
      last: share of the peak that is left at `steps`.
    """
    return (1.0 - last) / (steps - warmup_steps) if steps > warmup_steps else 0.0


def last_rate(peak: float, last: float) -> float:
    """Return the rate that the schedule never goes below: `last` times `peak`."""
    return peak * last
