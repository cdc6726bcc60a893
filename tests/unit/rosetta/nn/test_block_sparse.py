"""Block-sparse attention against dense attention with the same mask."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.core.errors import CONFLICT, INVALID, UNKNOWN
from rosetta.nn import block_sparse, sparse_layout
from rosetta.nn.attention import choose_mask_value
from rosetta.nn.relative_position import RelativeBias
from rosetta.t5x.run.sparse_attention import SparseAttention, parse_sparse_attention
from tests.support import errors

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 44, 3, 8
SETTINGS = SparseAttention(
    block=4, different_layout_per_head=True, num_global_blocks=1, num_random_blocks=2
)


def make_inputs() -> tuple[Any, Any]:
    """Return queries, keys, values and a cotangent, and which tokens are no padding."""
    rng = np.random.default_rng(0)
    shape = (4, BATCH, LENGTH, HEADS, HEAD_DIM)
    valid: Any = np.ones((BATCH, LENGTH), bool)
    valid[1, 30:] = False
    return rng.normal(size=shape).astype(np.float32), valid


def compute(attend: Any) -> Any:
    """Return the output and the gradients of an attention, where no padding is."""
    (query, key, value, cotangent), valid = make_inputs()
    cotangent = cotangent * valid[:, :, None, None]

    def loss(*inputs: Any) -> Any:
        return (attend(*inputs, valid) * cotangent).sum()

    output = attend(query, key, value, valid) * valid[:, :, None, None]
    return output, *jax.grad(loss, (0, 1, 2))(query, key, value)


def attend_densely(settings: SparseAttention) -> Any:
    mask = sparse_layout.make_token_mask(settings, HEADS, LENGTH)

    def attend(query: Any, key: Any, value: Any, valid: Any) -> Any:
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        visible = mask[None] & valid[:, None, None]
        logits = jnp.where(visible, logits, choose_mask_value(logits.dtype))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)

    return attend


def attend_sparsely(settings: SparseAttention) -> Any:
    def attend(query: Any, key: Any, value: Any, valid: Any) -> Any:
        return block_sparse.compute_block_sparse_attention(
            query, key, value, jnp.asarray(valid), settings
        )

    return attend


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, SparseAttention(block=4, num_global_blocks=0), SparseAttention(block=64)],
    ids=["heads", "window", "one block"],
)
def test_output_and_gradients_are_those_of_dense_attention(settings: SparseAttention) -> None:
    expected = jax.jit(lambda: compute(attend_densely(settings)))()
    made = jax.jit(lambda: compute(attend_sparsely(settings)))()
    for values, others in zip(made, expected, strict=True):
        np.testing.assert_allclose(values, others, rtol=0, atol=2e-5 * np.abs(others).max())
    if settings is SETTINGS:  # the oracle sees another layout
        other = SparseAttention(block=4, num_global_blocks=1, num_random_blocks=1)
        changed = jax.jit(lambda: compute(attend_densely(other)))()
        assert np.abs(changed[0] - made[0]).max() > 1e-2


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, SparseAttention(block=4, num_global_blocks=0), SparseAttention(block=64)],
    ids=["heads", "window", "one block"],
)
def test_relative_positions_are_those_of_dense_attention(settings: SparseAttention) -> None:
    module = RelativeBias(HEADS)
    rng = np.random.default_rng(2)
    table = rng.normal(size=(HEADS, 32)).astype(np.float32)
    (query, key, value, cotangent), valid = make_inputs()
    cotangent = cotangent * valid[:, :, None, None]
    mask = sparse_layout.make_token_mask(settings, HEADS, LENGTH)
    keys, first_key = block_sparse.find_relative_range(LENGTH, settings.block)

    def make_bias(table: Any, *lengths: int, first_key: int = 0) -> Any:
        variables = {"params": {"rel_embedding": table}}
        return module.apply(variables, *lengths, bidirectional=True, first_key=first_key)

    def attend_densely(query: Any, key: Any, value: Any, table: Any) -> Any:
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) + make_bias(table, LENGTH, LENGTH)
        visible = mask[None] & valid[:, None, None]
        logits = jnp.where(visible, logits, choose_mask_value(logits.dtype))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), value)

    def attend_sparsely(query: Any, key: Any, value: Any, table: Any) -> Any:
        bias = make_bias(table, settings.block, keys, first_key=first_key)
        return block_sparse.compute_block_sparse_attention(
            query, key, value, jnp.asarray(valid), settings, bias
        )

    def compute(attend: Any) -> Any:
        inputs = (query, key, value, table)
        gradients = jax.grad(lambda *arrays: (attend(*arrays) * cotangent).sum(), (0, 1, 2, 3))
        return attend(*inputs) * valid[:, :, None, None], *gradients(*inputs)

    expected = jax.jit(lambda: compute(attend_densely))()
    made = jax.jit(lambda: compute(attend_sparsely))()
    for values, others in zip(made, expected, strict=True):
        np.testing.assert_allclose(values, others, rtol=0, atol=2e-5 * np.abs(others).max())
    without = attend_sparsely(query, key, value, np.zeros_like(table)) * valid[:, :, None, None]
    assert np.abs(without - made[0]).max() > 1e-2


def test_the_layout() -> None:
    layout = sparse_layout.make_layout(SETTINGS, HEADS, 11)
    assert layout[:, 0].all()
    assert layout[:, :, 0].all()
    numbers = np.arange(11)
    window = np.abs(numbers[:, None] - numbers[None, :]) <= 1
    assert layout[:, window].all()
    assert (layout[:, 1:].sum(axis=-1) <= 1 + 3 + 2).all()
    assert (layout[0] != layout[1]).any()
    shared = SparseAttention(block=4, num_random_blocks=2)
    assert (
        sparse_layout.make_layout(shared, HEADS, 11)[0]
        == sparse_layout.make_layout(shared, HEADS, 11)[1]
    ).all()


@pytest.mark.parametrize("relative", [False, True], ids=["none", "relative"])
def test_memory_grows_linearly(*, relative: bool) -> None:
    def measure(length: int) -> int:
        array = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
        settings = SparseAttention(block=16)
        keys, first_key = block_sparse.find_relative_range(length, settings.block)
        module = RelativeBias(2)

        def attend(query: Any, key: Any, value: Any, table: Any) -> Any:
            bias = None
            if relative:
                variables = {"params": {"rel_embedding": table}}
                bias = module.apply(
                    variables, settings.block, keys, bidirectional=True, first_key=first_key
                )
            return block_sparse.compute_block_sparse_attention(
                query, key, value, None, settings, bias
            )

        table = jax.ShapeDtypeStruct((2, 32), jnp.float32)
        compiled = jax.jit(attend).lower(array, array, array, table).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    assert measure(4096) < 4.6 * measure(1024)


def test_settings_that_are_not_valid() -> None:
    with errors.expect_user_error(INVALID):
        parse_sparse_attention({"block": 0})
    with errors.expect_user_error(UNKNOWN):
        parse_sparse_attention({"attention": "bidirectional"})
    with errors.expect_user_error(CONFLICT):
        sparse_layout.make_layout(SparseAttention(num_heads=4), HEADS, 4)
