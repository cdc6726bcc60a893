"""Layer norm with a mean and a bias, as BERT has it.

Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from jax import lax


class LayerNorm(nn.Module):
    """A Flax module with the parameters `scale` and `bias`, float32 [features].

    Attributes:
        dtype: The type of the result. The statistics are computed in float32.
        epsilon: The number added to the variance.
    """

    dtype: Any = jnp.float32
    epsilon: float = 1e-12

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """Return x [..., features], with mean 0 and variance 1, times `scale` plus `bias`."""
        x = jnp.asarray(x, jnp.float32)
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        shape = (x.shape[-1],)
        scale = param_with_axes("scale", nn.initializers.ones, shape, jnp.float32, axes=("embed",))
        bias = param_with_axes("bias", nn.initializers.zeros, shape, jnp.float32, axes=("embed",))
        normed = centered * lax.rsqrt(variance + self.epsilon)
        return jnp.asarray(normed * scale + bias, self.dtype)
