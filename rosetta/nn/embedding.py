"""The embedding table of T5X's networks: their first layer, and in models that share it the last
product too.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes


class Embedding(nn.Module):
    """A Flax module with the parameter `embedding`, float32 [vocabulary, features].

    Attributes:
        vocabulary: The number of token ids.
        features: The width of a token's vector.
        dtype: The type of the vectors that a call returns.
    """

    vocabulary: int
    features: int
    dtype: Any = jnp.float32

    def setup(self) -> None:
        """Declare the parameter; Flax calls this."""
        self.embedding = param_with_axes(
            "embedding",
            nn.initializers.normal(stddev=1.0),
            (self.vocabulary, self.features),
            jnp.float32,
            axes=("vocab", "embed"),
        )

    def __call__(self, tokens: Any) -> Any:
        """Return the vectors [..., features] in `dtype` of token ids [...]."""
        return jnp.asarray(self.embedding, self.dtype)[tokens.astype(jnp.int32)]

    def table(self) -> Any:
        """Return the parameter itself, float32 [vocabulary, features]."""
        return self.embedding
