"""Dropout for T5X's layers: the random bits of all dropouts in a layer come from one draw.

Each dropout with a draw of its own costs a key and a loop of Threefry to compile, and kernels to
launch in every step. Together they took half of the time in which XLA compiled a training step of
T5. Here one draw is cut into the masks of all dropouts.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax.linen.partitioning import with_sharding_constraint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flax import linen as nn


def draw_masks(
    module: nn.Module, rate: float, batch: int, widths: Mapping[str, int]
) -> dict[str, Any]:
    """Draw the dropout masks of a layer.

    Args:
        module: The layer, whose random stream "dropout" is used once.
        rate: The probability with which a value is dropped.
        batch: The number of rows.
        widths: The width of each dropout's mask, by a name of the caller's choice.

    Returns:
        For each name bool [batch, width], True if the value is kept.
    """
    ends = list(itertools.accumulate(widths.values()))
    bits = jax.random.bernoulli(module.make_rng("dropout"), 1.0 - rate, (batch, ends[-1]))
    bits = with_sharding_constraint(bits, ("batch", None))
    return dict(zip(widths, jnp.split(bits, ends[:-1], axis=1), strict=True))


def compute_keep_probability(rate: float, dtype: Any) -> Any:
    """Return the probability of keeping a value, rounded to `dtype` as in upstream's network.

    Args:
        rate: The probability with which a value is dropped.
        dtype: The type of the activations.

    Returns:
        A scalar in `dtype`; 0.8984375 for a rate of 0.1 in bfloat16.
    """
    return jnp.asarray(1.0 - rate, dtype)


def apply_mask(x: Any, mask: Any, rate: float) -> Any:
    """Set the dropped values to zero, and divide the kept ones by 1 - rate.

    Args:
        x: The activations, of any shape.
        mask: bool, broadcasts to the shape of `x`, True if the value is kept; None returns `x` as
            it is.
        rate: The probability with which the mask drops a value.

    Returns:
        The shape and type of `x`.
    """
    if mask is None:
        return x
    return jnp.where(mask, x / compute_keep_probability(rate, x.dtype), jnp.zeros((), x.dtype))
