"""T5's layer norm: normalisation by the root mean square, without a mean and without a bias.

Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax


class RMSNorm(nn.Module):
    """A Flax module with the parameter `scale`, float32 [features].

    Attributes:
        dtype: The type of the result. The statistics are computed in float32.
        epsilon: The number added to the mean square.
    """

    dtype: Any = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Return x [..., features] divided by its root mean square and times `scale`."""
        x = jnp.asarray(x, jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normed = jnp.asarray(x * lax.rsqrt(mean_square + self.epsilon), self.dtype)
        scale = param_with_axes(
            "scale", nn.initializers.ones, (x.shape[-1],), jnp.float32, axes=("embed",)
        )
        return normed * jnp.asarray(scale, self.dtype)
