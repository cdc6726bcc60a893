"""AdamW with the trainer's learning rate, with and without RMS scaling, and learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from t5x import optimizers

from rosetta.t5x import gradient_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SMALLEST_RMS = (
    1e-3  # so that parameters that begin at zero move; nanoT5 and Adafactor have it, too
)


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
    clipping = [] if clip_norm is None else [gradient_norm.clip_by_global_norm(clip_norm)]
    return make_scheduled_optimizer(
        [*clipping, optax.adamw(1.0, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)]
    )


def adamw_rms(
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
) -> ScheduledOptimizer:
    """Return AdamW whose update of each array is multiplied by the root mean square of the array.

    It is the AdamWScale of nanoT5 (Nawrot, 2023), which took the factor from Adafactor (Shazeer and
    Stern, 2018): the learning rate is relative to the size of the parameters. The factor is at
    least 0.001. The weight decay has no such factor.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: the value that is added to the root of the second moment.
      weight_decay: each step subtracts it times the learning rate and the parameter.
      clip_norm: the largest global norm of the gradients; None clips nothing.
    """
    clipping = (
        optax.identity() if clip_norm is None else gradient_norm.clip_by_global_norm(clip_norm)
    )
    # The state tree differs from that of `adamw`, so that neither resumes from the other's.
    return make_scheduled_optimizer(
        [
            clipping,
            optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
            optax.scale_by_param_block_rms(_SMALLEST_RMS),
            optax.add_decayed_weights(weight_decay),
            optax.scale(-1.0),
        ]
    )


def cosine_decay(
    *, peak: float, steps: int, warmup_steps: int, last: float, step_offset: int = 0
) -> Callable[[Any], Any]:
    """Return a learning rate that rises linearly from 0, and falls by a cosine to its last value.

    Unlike T5X's cosine, the rate keeps its last value after the schedule. A schedule that is not
    longer than its warm-up does not fall.

    Args:
      peak: the rate after the warm-up.
      steps: the length of the schedule, including the warm-up.
      warmup_steps: the steps up to the peak.
      last: the share of the peak that is left after `steps`.
      step_offset: the step of the train state at which the schedule begins.

    Returns:
      A function from the step, int [], to the rate, float32 [].
    """
    schedule = optax.linear_schedule(0.0, peak, warmup_steps)
    if steps > warmup_steps:
        schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, steps, peak * last)

    def compute_rate(step: Any) -> Any:
        return jnp.asarray(schedule(jnp.maximum(0, step - step_offset)), jnp.float32)

    return compute_rate


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
