"""The embedding table of T5X's networks: their first layer, and in models that share it the last
product too.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from rosetta.nn import sharded_parameters


class Embedding(nn.Module):
    """A Flax module with the parameter `embedding`, float32 [vocabulary, features].

    Attributes:
        vocabulary: The number of token ids.
        features: The width of a token's vector.
        dtype: The type of the vectors that a call returns.
        stddev: The standard deviation of the initial values.
        axes: The logical names of the table's two dimensions.
    """

    vocabulary: int
    features: int
    dtype: Any = jnp.float32
    stddev: float = 1.0
    axes: tuple[str, str] = ("vocab", "embed")

    def setup(self) -> None:
        """Declare the parameter; Flax calls this."""
        self.embedding = sharded_parameters.declare_parameter(
            "embedding",
            nn.initializers.normal(stddev=self.stddev),
            (self.vocabulary, self.features),
            self.axes,
        )

    def __call__(self, tokens: Any) -> Any:
        """Return the vectors [..., features] in `dtype` of token ids [...]."""
        table = sharded_parameters.cast_parameter(self.embedding, self.axes, self.dtype)
        return table[tokens.astype(jnp.int32)]

    def table(self) -> Any:
        """Return the parameter itself, float32 [vocabulary, features], gathered if sharded."""
        return sharded_parameters.cast_parameter(self.embedding, self.axes, self.embedding.dtype)
