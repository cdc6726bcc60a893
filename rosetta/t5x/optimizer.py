"""AdamW with the trainer's learning rate, and the learning-rate schedule's values in gin files.

The optimizer's state is that of T5X's own AdamW.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax
from t5x import optimizers

if TYPE_CHECKING:
    from collections.abc import Sequence


class ScheduledOptimizer(optimizers.OptaxWrapper):
    """An optax optimizer of rate 1, whose update is multiplied by the trainer's learning rate.

    T5X's own wrapper ignores that rate. There, an optax optimizer keeps the rate it was built with,
    and the schedule of the run only shows in the log. A schedule inside optax would count the steps
    of its own state and not `train_state.step`. Finetuning without the old optimizer state would
    then start at another place of the schedule.
    """

    def apply_gradient(
        self, hyper_params: Any, params: Any, state: Any, grads: Any
    ) -> tuple[Any, Any]:
        """Return the new parameters and the new state.

        Args:
          hyper_params: has the learning rate of the step.
          params: the parameters.
          state: the optimizer's state.
          grads: the gradients.

        Raises:
          ValueError: `hyper_params` has no learning rate.
        """
        rate = hyper_params.learning_rate
        if rate is None:
            raise ValueError(
                "apply_gradient needs a learning_rate: this optimizer does not have its own"
            )
        updates, inner = self.optax_optimizer.update(grads, state.param_states, params)
        updates = jax.tree.map(lambda update: rate * update, updates)
        return optax.apply_updates(params, updates), optimizers.OptimizerState(
            step=state.step + 1, param_states=inner
        )


def make_scheduled_optimizer(
    transformations: Sequence[optax.GradientTransformation],
) -> ScheduledOptimizer:
    """Return an optimizer with the trainer's learning rate.

    Args:
      transformations: optax transformations that are chained, built for a rate of 1.
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

    The state is that of t5x.optimizers.chain([clip_by_global_norm, adamw]) with a constant rate.
    Checkpoints of T5X's AdamW can be restored with this optimizer, and the other way round.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: the value that is added to the root of the second moment.
      weight_decay: each step subtracts it times the learning rate and the parameter.
      clip_norm: the largest global norm of the gradients; larger ones are scaled down. None clips
        nothing, and has another state tree.
    """
    clipping = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    return make_scheduled_optimizer(
        [*clipping, optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)]
    )


def decay_per_step(steps: int, warmup_steps: int, last: float) -> float:
    """Return the `decay_factor` of T5X's linear_decay: the share of the peak rate that each step
    after the warm-up subtracts.

    Args:
      steps: the length of the schedule, including the warm-up.
      warmup_steps: the steps up to the peak.
      last: the share of the peak that is left after `steps`.
    """
    return (1.0 - last) / (steps - warmup_steps) if steps > warmup_steps else 0.0


def last_rate(peak: float, last: float) -> float:
    """Return the lowest rate of the schedule: `last` times `peak`."""
    return peak * last
