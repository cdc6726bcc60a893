"""Relative positions: buckets as the paper's, and the matrix from the vector of distances."""

from __future__ import annotations

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import relative_position


def test_compute_buckets() -> None:
    far = np.array([-1000, -128, -20, -8, -7, -1, 0, 1, 7, 8, 20, 128, 1000], np.int32)
    both = relative_position.compute_buckets(far, bidirectional=True, buckets=32, farthest=128)
    # The nearest eight distances of each direction have a bucket each; from 128 on all share the last one.
    assert both.tolist() == [15, 15, 10, 8, 7, 1, 0, 17, 23, 24, 26, 31, 31]
    back = relative_position.compute_buckets(far, bidirectional=False, buckets=32, farthest=128)
    assert back[6:].tolist() == [0] * 7
    assert back[:6].tolist() == [31, 31, 17, 8, 7, 1]


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_make_toeplitz(queries: int, keys: int) -> None:
    each = jnp.arange(2 * (queries + keys), dtype=jnp.float32).reshape(2, -1)
    found = relative_position.make_toeplitz(each, queries, keys)
    for i in range(queries):
        for j in range(keys):
            np.testing.assert_array_equal(found[:, i, j], each[:, (j - i) % (queries + keys)])


def test_the_gradient_counts_the_entries_of_a_bucket() -> None:
    module = relative_position.RelativeBias(heads=2)
    variables = module.init(jax.random.key(0), 6, 6, bidirectional=True)
    gradient = jax.grad(
        lambda params: module.apply({"params": params}, 6, 6, bidirectional=True).sum()
    )(variables["params"])
    distance = np.arange(6)[None] - np.arange(6)[:, None]
    counts = np.bincount(
        relative_position.compute_buckets(
            distance, bidirectional=True, buckets=32, farthest=128
        ).ravel(),
        minlength=32,
    )
    np.testing.assert_array_equal(gradient["rel_embedding"], np.stack([counts, counts]))
