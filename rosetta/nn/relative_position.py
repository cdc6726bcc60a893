"""T5's relative position biases (Raffel et al. 2020, arXiv:1910.10683, section 2.1): a learned
scalar for each head and bucket of distances.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.partitioning import param_with_axes


def compute_buckets(
    distance: np.ndarray, *, bidirectional: bool, buckets: int, farthest: int
) -> np.ndarray:
    """Return the buckets, int32, of key position minus query position.

    Of the buckets, or of each half where both directions count, one half holds one distance each,
    the other grows with the logarithm up to `farthest`, beyond which all distances share the last.
    Without `bidirectional`, keys after the query share bucket 0.
    """
    half = buckets // 2 if bidirectional else buckets
    exact = half // 2
    # float32 and its epsilon, as models that exist were trained: a distance on a boundary must fall
    # where it fell there.
    span: np.ndarray = np.arange(exact, farthest + 1, dtype=np.float32)
    grown = (
        np.log(span / exact + np.finfo(np.float32).eps) / np.log(farthest / exact) * (half - exact)
    ).astype(np.int32)
    of_each = np.concatenate(
        [np.arange(exact), np.minimum(exact + grown, half - 1)]
    )  # the bucket of each distance up to the farthest
    apart = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    ahead = half * (distance > 0) if bidirectional else 0
    found: np.ndarray = (ahead + of_each[np.minimum(apart, farthest)]).astype(np.int32)
    return found


class RelativeBias(nn.Module):
    """Holds `rel_embedding`, [heads, buckets] in float32; returns the bias [1, heads, queries,
    keys] in `dtype`.
    """

    heads: int
    dtype: Any = jnp.float32
    buckets: int = 32
    farthest: int = 128

    @nn.compact
    def __call__(self, queries: int, keys: int, *, bidirectional: bool) -> Any:
        # Distances 0 .. keys-1, then one that does not occur, then 1-queries .. -1: the order in
        # which `spread` reads them.
        distance = np.concatenate([np.arange(keys), [0], np.arange(1 - queries, 0)]).astype(
            np.int32
        )
        where = compute_buckets(
            distance, bidirectional=bidirectional, buckets=self.buckets, farthest=self.farthest
        )
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table = param_with_axes(
            "rel_embedding",
            init,
            (self.heads, self.buckets),
            jnp.float32,
            axes=("heads", "relpos_buckets"),
        )
        one_hot = jnp.asarray(where[None, :] == np.arange(self.buckets)[:, None], self.dtype)
        # A sum over the buckets, of which one counts: neither a gather, whose gradient would be a
        # scatter, nor a GEMM.
        each = jnp.sum(jnp.asarray(table, self.dtype)[:, :, None] * one_hot[None], axis=1)
        return make_toeplitz(each, queries, keys)[None]


def make_toeplitz(each: Any, queries: int, keys: int) -> Any:
    """Return [heads, queries, keys] whose entry (i, j) is each[:, (j - i) mod (queries + keys)];
    `each` is [heads, queries + keys].

    Repeated rows of n read as rows of n - 1 begin one later each: so the matrix comes from
    reshaping, and its gradient from sums.
    """
    heads, period = each.shape
    rows = jnp.broadcast_to(each[:, None, :], (heads, queries, period)).reshape(heads, -1)
    return rows[:, : queries * (period - 1)].reshape(heads, queries, period - 1)[:, :, :keys]
