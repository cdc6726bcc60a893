"""The embedding table of T5X's networks: their first layer, and in models that share it the last
product too.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from rosetta.nn import sharded_parameters

_AXES = ("vocab", "embed")


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
        self.embedding = sharded_parameters.declare_parameter(
            "embedding",
            nn.initializers.normal(stddev=1.0),
            (self.vocabulary, self.features),
            _AXES,
        )

    def __call__(self, tokens: Any) -> Any:
        """Return the vectors [..., features] in `dtype` of token ids [...]."""
        table = sharded_parameters.cast_parameter(self.embedding, _AXES, self.dtype)
        return table[tokens.astype(jnp.int32)]

    def table(self) -> Any:
        """Return the parameter itself, float32 [vocabulary, features], gathered if sharded."""
        return sharded_parameters.cast_parameter(self.embedding, _AXES, self.embedding.dtype)
