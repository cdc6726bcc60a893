"""Normalisation by the root mean square (Zhang and Sennrich 2019, arXiv:1910.07467), which is T5's
layer norm: no mean, no bias.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax


class RMSNorm(nn.Module):
    """Scale [..., features] to a root mean square of one, then by the parameter `scale`; statistics
    in float32, the result in `dtype`.
    """

    dtype: Any = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = jnp.asarray(x, jnp.float32)
        power = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normed = jnp.asarray(x * lax.rsqrt(power + self.epsilon), self.dtype)
        scale = param_with_axes(
            "scale", nn.initializers.ones, (x.shape[-1],), jnp.float32, axes=("embed",)
        )
        return normed * jnp.asarray(scale, self.dtype)
