"""Dropout whose random bits are drawn once for all places of a layer.

Each place that draws its own costs a key and a loop of Threefry to compile, and kernels to launch
in every step; together they were half of the time that XLA took to compile a training step of T5.
One draw is cut into the places' masks instead.
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
    """Return masks, bool [batch, width] for each name, True with probability 1 - rate; from one
    draw of the module's rng "dropout".
    """
    ends = list(itertools.accumulate(widths.values()))
    kept = jax.random.bernoulli(module.make_rng("dropout"), 1.0 - rate, (batch, ends[-1]))
    kept = with_sharding_constraint(kept, ("batch", None))
    return dict(zip(widths, jnp.split(kept, ends[:-1], axis=1), strict=True))


def apply_mask(x: Any, kept: Any, rate: float) -> Any:
    """Return x, scaled up where it is kept and zero where not; `kept` broadcasts to it, None keeps
    all as it is.
    """
    return (
        x
        if kept is None
        else jnp.where(kept, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
    )
