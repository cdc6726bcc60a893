"""The table of token vectors, read as the first layer and, where a model shares it, multiplied with
as the last.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.partitioning import param_with_axes


class Embedding(nn.Module):
    """Holds `embedding`, [vocabulary, features] in float32; vectors come in `dtype`."""

    vocabulary: int
    features: int
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.embedding = param_with_axes(
            "embedding",
            nn.initializers.normal(stddev=1.0),
            (self.vocabulary, self.features),
            jnp.float32,
            axes=("vocab", "embed"),
        )

    def __call__(self, tokens: Any) -> Any:
        """Return the vectors of int32 tokens [...]: [..., features]."""
        return jnp.asarray(self.embedding, self.dtype)[tokens.astype(jnp.int32)]

    def table(self) -> Any:
        """Return the parameter as it is: [vocabulary, features] in float32."""
        return self.embedding
