"""Dynamic loss scaling, with which float16 activations train.

Gradients below 6e-8 are zero in float16. So the loss is multiplied by a scale before gradients are
computed, and the gradients are divided by it afterwards. A scale that is too large makes gradients
that are not finite: such a step is left out, and the scale is halved. After many steps without
one, the scale is doubled (Micikevicius et al., Mixed Precision Training, 2018, section 3.2; the
numbers are those of PyTorch's GradScaler).

The scale is part of the train state's mutable variables, as the FP8 state is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from flax.linen.partitioning import AxisMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

COLLECTION = "loss_scale"
SCALE = "scale"  # float32 []
FINITE_STEPS = "finite_steps"  # int32 []: the steps since the scale changed last
INITIAL_SCALE = 2.0**16
SMALLEST_SCALE, LARGEST_SCALE = 1.0, 2.0**24
GROWTH_INTERVAL = 2000  # steps


def needs_scaling(dtype: Any) -> bool:
    """Return whether a type of activations needs loss scaling: whether it is float16."""
    return bool(jnp.dtype(dtype) == jnp.float16)


def make_initial_state() -> dict[str, Any]:
    """Return the state before the first step."""
    return {SCALE: jnp.float32(INITIAL_SCALE), FINITE_STEPS: jnp.int32(0)}


def make_axes_metadata() -> dict[str, Any]:
    """Return Flax's axis metadata for the state, whose arrays have no dimensions."""
    return {f"{name}_axes": AxisMetadata(names=()) for name in (SCALE, FINITE_STEPS)}


def advance_state(state: Mapping[str, Any], is_finite: Any) -> dict[str, Any]:
    """Return the state after a step.

    Args:
      state: the state of the step.
      is_finite: whether the gradients of the step are finite, bool [].
    """
    steps = state[FINITE_STEPS] + 1
    grows = steps >= GROWTH_INTERVAL
    grown = jnp.where(grows, jnp.minimum(2 * state[SCALE], LARGEST_SCALE), state[SCALE])
    halved = jnp.maximum(state[SCALE] / 2, SMALLEST_SCALE)
    return {
        SCALE: jnp.where(is_finite, grown, halved),
        FINITE_STEPS: jnp.where(is_finite & ~grows, steps, 0),
    }
