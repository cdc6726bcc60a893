"""Fused attention, plain attention and a NumPy loop agree on masks and biases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import attention, dropout

BATCH, QUERIES, KEYS, HEADS, DEPTH = 3, 6, 8, 2, 8
ROWS, COLUMNS = (
    jnp.arange(QUERIES) < jnp.asarray([[6], [4], [1]]),
    jnp.arange(KEYS) < jnp.asarray([[8], [3], [5]]),
)


def _inputs(keys: int = KEYS) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    shapes = (
        (BATCH, QUERIES, HEADS, DEPTH),
        (BATCH, keys, HEADS, DEPTH),
        (BATCH, keys, HEADS, DEPTH),
        (1, HEADS, QUERIES, keys),
    )
    query, key, value, relative = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes
    )
    return query, key, value, relative


def _plain(
    mask: attention.Mask,
    query: Any,
    key: Any,
    value: Any,
    relative: Any,
    *,
    transposed: bool = False,
) -> Any:
    bias = mask.make_bias(QUERIES, key.shape[0 if transposed else 1], relative, jnp.float32)
    return attention.compute_plain_attention(
        query,
        key,
        value,
        bias=bias,
        float32_logits=False,
        drop=lambda weights: weights,
        transposed=transposed,
    )


@pytest.mark.parametrize("biased", [False, True], ids=["", "relative"])
@pytest.mark.parametrize(
    "mask",
    [
        attention.Mask(),
        attention.Mask(valid_keys=COLUMNS),
        attention.Mask(valid_queries=ROWS),
        attention.Mask(valid_queries=ROWS, valid_keys=COLUMNS),
        attention.Mask(valid_queries=ROWS, valid_keys=ROWS, causal=True),
        attention.Mask(causal=True),
    ],
    ids=["nothing", "keys", "queries", "both", "both, causal", "causal"],
)
def test_fused_attention_matches_plain_attention(mask: attention.Mask, biased: bool) -> None:
    query, key, value, relative = _inputs(QUERIES if mask.causal else KEYS)
    there = jnp.ones((BATCH, QUERIES), bool) if mask.valid_queries is None else mask.valid_queries
    weights = (
        jnp.asarray(np.random.default_rng(1).normal(size=query.shape), jnp.float32)
        * there[:, :, None, None]
    )

    def both(of: Any) -> Any:
        def loss(query: Any, key: Any, value: Any, relative: Any) -> Any:
            found = of(query, key, value, relative if biased else None)
            return jnp.sum(found * weights), found * there[:, :, None, None]

        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(
            query, key, value, relative
        )

    found = both(
        lambda *given: attention.compute_fused_attention(
            *given[:3], relative=given[3], mask=mask, implementation="xla"
        )
    )
    expected = both(lambda *given: _plain(mask, *given))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_transposed_inputs_give_the_transposed_output() -> None:
    query, key, value, relative = _inputs()
    mask = attention.Mask(valid_queries=ROWS, valid_keys=COLUMNS)
    turned = [jnp.swapaxes(each, 0, 1) for each in (query, key, value)]
    found = _plain(mask, turned[0], turned[1], turned[2], relative, transposed=True)
    np.testing.assert_allclose(
        jnp.swapaxes(found, 0, 1), _plain(mask, query, key, value, relative), rtol=1e-6, atol=1e-6
    )


def test_plain_attention_matches_a_numpy_loop() -> None:
    """For one head: no scale, and a softmax over the keys that a query sees."""
    query, key, value, relative = (np.asarray(each) for each in _inputs())
    mask = attention.Mask(
        valid_keys=COLUMNS,
        query_segments=jnp.ones((BATCH, QUERIES), int),
        key_segments=jnp.asarray([[1, 2] * 4] * BATCH),
    )
    found = _plain(mask, *(jnp.asarray(each) for each in (query, key, value, relative)))
    for row in range(BATCH):
        seen = [j for j in range(KEYS) if COLUMNS[row, j] and j % 2 == 0]
        for i in range(QUERIES):
            weights = np.exp(
                [query[row, i, 1] @ key[row, j, 1] + relative[0, 1, i, j] for j in seen]
            )
            np.testing.assert_allclose(
                found[row, i, 1],
                (weights / weights.sum()) @ value[row, seen, 1],
                rtol=1e-5,
                atol=1e-6,
            )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_fully_masked_row_is_finite(dtype: str) -> None:
    query, key, value, relative = (each.astype(dtype) for each in _inputs())
    mask = attention.Mask(valid_queries=ROWS, valid_keys=COLUMNS)
    bias = mask.make_bias(QUERIES, KEYS, relative, dtype)
    assert bias.dtype == dtype
    found = attention.compute_plain_attention(
        query, key, value, bias=bias, float32_logits=False, drop=lambda weights: weights
    )
    assert bool(jnp.isfinite(found).all())
    changed = attention.compute_plain_attention(
        query,
        key.at[1, 3:].set(9),
        value.at[1, 3:].set(9),
        bias=bias,
        float32_logits=False,
        drop=lambda weights: weights,
    )
    np.testing.assert_array_equal(changed[1, :4], found[1, :4])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dropout": True}, "dropout"),
        ({"dtype": "float32"}, "float32"),
        ({"head_dim": 136}, "136"),
        ({"head_dim": 12}, "12"),
        ({"queries": 15}, "odd"),
        ({"keys": 15}, "odd"),
        ({"mask": attention.Mask(query_segments=1, key_segments=1)}, "packed"),
        ({"mask": attention.Mask(visible=1)}, "neither"),
        ({"float32_logits": True}, "float32_attention"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_limit_of_cudnn_has_a_reason(change: dict[str, Any], reason: str) -> None:
    able: dict[str, Any] = {
        "dtype": "bfloat16",
        "head_dim": 64,
        "queries": 512,
        "keys": 512,
        "mask": attention.Mask(),
        "biased": True,
        "dropout": False,
        "float32_logits": False,
    }
    assert attention.find_cudnn_problem(**able) == ""
    assert reason in attention.find_cudnn_problem(**{**able, **change})


def test_cudnn_takes_odd_lengths_without_a_bias() -> None:
    how: dict[str, Any] = {
        "dtype": "bfloat16",
        "head_dim": 64,
        "queries": 511,
        "keys": 512,
        "mask": attention.Mask(),
        "dropout": False,
        "float32_logits": False,
    }
    assert attention.find_cudnn_problem(**how, biased=False) == ""


def _measure_dropout_errors(seed: int, *, transposed: bool) -> tuple[float, float]:
    """The errors of a bfloat16 attention and its projection against float32.

    Returns:
        The error with dropped weights, and the error with zeroed values.
    """
    batch, queries, keys, heads, depth, keep = 2, 12, 16, 3, 8, 0.75  # 0.75 is exact in bfloat16
    rng = np.random.default_rng(seed)
    query, key, value = (
        jnp.asarray(rng.normal(size=(batch, length, heads, depth)), jnp.bfloat16)
        for length in (queries, keys, keys)
    )
    kernel = jnp.asarray(rng.normal(size=(heads * depth, 32)), jnp.float32)
    keep_mask = jnp.asarray(rng.random((batch, heads * keys)) < keep)

    def project(attended: Any, kernel: Any) -> Any:
        product = attended.reshape(batch, queries, -1) @ kernel.astype(attended.dtype)
        return product.astype(jnp.float32)

    def drop_weights(dtype: Any) -> Any:
        attended = attention.compute_plain_attention(
            *(array.astype(dtype) for array in (query, key, value)),
            bias=None,
            float32_logits=True,
            drop=lambda weights: dropout.apply_mask(
                weights, keep_mask.reshape(batch, heads, 1, keys), 1 - keep
            ),
        )
        return project(attended, kernel)

    if transposed:
        value = jnp.swapaxes(value, 0, 1)
    zeroed = attention.zero_dropped_keys(value, keep_mask, transposed=transposed)
    if transposed:
        value, zeroed = jnp.swapaxes(value, 0, 1), jnp.swapaxes(zeroed, 0, 1)
    attended = attention.compute_fused_attention(
        query, key, zeroed, relative=None, mask=attention.Mask(), implementation="xla"
    )
    exact = drop_weights(jnp.float32)
    return (
        float(jnp.linalg.norm(drop_weights(jnp.bfloat16) - exact)),
        float(jnp.linalg.norm(project(attended, kernel / keep) - exact)),
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_zeroed_values_of_dropped_keys_are_no_less_exact_than_dropped_weights(
    transposed: bool,
) -> None:
    weights, values = np.mean(
        [_measure_dropout_errors(seed, transposed=transposed) for seed in range(20)], axis=0
    )
    assert 0 < values <= weights
