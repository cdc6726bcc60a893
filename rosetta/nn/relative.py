"""T5's relative position biases (Raffel et al. 2020, arXiv:1910.10683, section 2.1): a learned scalar for each head and bucket of distances."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.partitioning import param_with_axes


def bucket(distance: np.ndarray, *, bidirectional: bool, buckets: int, farthest: int) -> np.ndarray:
    """Return the buckets, int32, of key position minus query position.

    Of the buckets, or of each half where both directions count, one half holds one distance each, the other grows with the logarithm up to
    `farthest`, beyond which all distances share the last. Without `bidirectional`, keys after the query share bucket 0.
    """
    offset = np.zeros_like(distance)
    back = -distance
    if bidirectional:
        buckets //= 2
        offset = np.where(back < 0, buckets, 0)
        back = np.abs(back)
    else:
        back = np.maximum(back, 0)
    exact = buckets // 2
    # float32 and its epsilon, as models that exist were trained: a distance on a boundary must fall where it fell there.
    ratio = back.astype(np.float32) / exact + np.finfo(np.float32).eps
    far = exact + (np.log(ratio) / np.log(farthest / exact) * (buckets - exact)).astype(np.int32)
    return (offset + np.where(back < exact, back, np.minimum(far, buckets - 1))).astype(np.int32)


class RelativeBias(nn.Module):
    """Holds `rel_embedding`, [heads, buckets] in float32; returns the bias [1, heads, queries, keys] in `dtype`."""

    heads: int
    dtype: Any = jnp.float32
    buckets: int = 32
    farthest: int = 128

    @nn.compact
    def __call__(self, queries: int, keys: int, *, bidirectional: bool) -> Any:
        distance = np.arange(keys, dtype=np.int32)[None, :] - np.arange(queries, dtype=np.int32)[:, None]
        where = bucket(distance, bidirectional=bidirectional, buckets=self.buckets, farthest=self.farthest)
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table = param_with_axes("rel_embedding", init, (self.heads, self.buckets), jnp.float32, axes=("heads", "relpos_buckets"))
        # A product with a one-hot matrix: its gradient is a product as well, where a gather's would be a scatter.
        one_hot = jnp.asarray(where.reshape(1, -1) == np.arange(self.buckets)[:, None], self.dtype)
        return jnp.dot(jnp.asarray(table, self.dtype), one_hot).reshape(1, self.heads, queries, keys)
