"""T5's relative position biases: a learned scalar for each head and bucket of distances.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1.
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
    """Return the bucket of each distance.

    The first half of the buckets has one distance each. In the second half, the width of a bucket
    grows with the logarithm of the distance. All distances from `farthest` on share the last
    bucket. If both directions count, each direction has half of the buckets, divided in this way.

    Args:
        distance: Key position minus query position, int32 of any shape.
        bidirectional: Whether keys after the query have buckets of their own; else they share
            bucket 0.
        buckets: The number of buckets.
        farthest: The distance from which on all distances share a bucket.

    Returns:
        int32 in the shape of `distance`.
    """
    per_direction = buckets // 2 if bidirectional else buckets
    exact = per_direction // 2
    # Trained models depend on where float32 with its epsilon puts a distance on a boundary.
    span: np.ndarray = np.arange(exact, farthest + 1, dtype=np.float32)
    logarithmic = (
        np.log(span / exact + np.finfo(np.float32).eps)
        / np.log(farthest / exact)
        * (per_direction - exact)
    ).astype(np.int32)
    bucket_of_distance = np.concatenate(
        [np.arange(exact), np.minimum(exact + logarithmic, per_direction - 1)]
    )
    apart = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    offset = per_direction * (distance > 0) if bidirectional else 0
    result: np.ndarray = (offset + bucket_of_distance[np.minimum(apart, farthest)]).astype(np.int32)
    return result


class RelativeBias(nn.Module):
    """A Flax module with the parameter `rel_embedding`, float32 [heads, buckets].

    Attributes:
        heads: The number of attention heads.
        dtype: The type of the bias.
        buckets: The number of buckets.
        farthest: The distance from which on all distances share a bucket.
    """

    heads: int
    dtype: Any = jnp.float32
    buckets: int = 32
    farthest: int = 128

    @nn.compact
    def __call__(self, queries: int, keys: int, *, bidirectional: bool, first_key: int = 0) -> Any:
        """Return the bias [1, heads, queries, keys] in `dtype`.

        Args:
            queries: The number of queries.
            keys: The number of keys.
            bidirectional: See compute_buckets.
            first_key: The position of the first key, relative to the first query.
        """
        # `make_toeplitz` reads the distances in this order: 0 to keys - 1, one that does not occur,
        # and 1 - queries to -1.
        distance = np.concatenate([np.arange(keys), [0], np.arange(1 - queries, 0)]).astype(
            np.int32
        )
        distance += np.int32(first_key)
        bucket_indices = compute_buckets(
            distance, bidirectional=bidirectional, buckets=self.buckets, farthest=self.farthest
        )
        table = param_with_axes(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.heads, self.buckets),
            jnp.float32,
            axes=("heads", "relpos_buckets"),
        )
        is_bucket = bucket_indices[None, :] == np.arange(self.buckets)[:, None]
        one_hot = jnp.asarray(is_bucket, self.dtype)
        # A sum over one-hot buckets is not a gather, whose gradient would be a scatter, and not a
        # GEMM.
        biases = jnp.sum(jnp.asarray(table, self.dtype)[:, :, None] * one_hot[None], axis=1)
        return make_toeplitz(biases, queries, keys)[None]


def make_toeplitz(diagonals: Any, queries: int, keys: int) -> Any:
    """Make a matrix that is constant along its diagonals, for each head.

    The matrix comes from reshaping alone, so its gradient is made of sums: if rows of length n are
    read as rows of length n - 1, each row begins one element later than the row before.

    Args:
        diagonals: [heads, queries + keys], the value of each diagonal.
        queries: The number of rows.
        keys: The number of columns.

    Returns:
        [heads, queries, keys] with entry (i, j) = diagonals[:, (j - i) mod (queries + keys)].
    """
    heads, period = diagonals.shape
    rows = jnp.broadcast_to(diagonals[:, None, :], (heads, queries, period)).reshape(heads, -1)
    shifted = rows[:, : queries * (period - 1)].reshape(heads, queries, period - 1)
    return shifted[:, :, :keys]
