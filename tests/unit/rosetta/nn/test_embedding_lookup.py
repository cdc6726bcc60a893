"""The lookup of rows, and its gradient, against a product with one-hot rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import embedding_lookup
from tests.support.sharded_embedding_lookup import LAYOUTS

VOCABULARY, FEATURES = 300, 16
ROOT = Path(__file__).resolve().parents[4]


def _make_ids(tokens: int, frequent: int = 7) -> Any:
    """Return random ids, every second of which is the same."""
    ids = np.random.default_rng(tokens).integers(0, VOCABULARY, tokens)
    ids[::2] = frequent
    return jnp.asarray(ids, jnp.int32)


def _draw(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(len(shape)).normal(0.5, 1, shape), jnp.float32)


def _multiply_one_hot(table: Any, ids: Any) -> Any:
    one_hot = jax.nn.one_hot(ids, len(table), dtype=table.dtype)
    return jnp.einsum("...y,yz->...z", one_hot, table, precision="highest")


def _look_up(table: Any, ids: Any) -> Any:
    return embedding_lookup.look_up_rows(None, table, ids)


def _differentiate(look_up: Any, table: Any, ids: Any, gradient: Any) -> Any:
    return jax.vjp(lambda table: look_up(table, ids), table)[1](gradient)[0]


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 5000])
@pytest.mark.parametrize("frequent", [0, 7, VOCABULARY - 1])
def test_rows_and_gradient_in_float32(tokens: int, frequent: int) -> None:
    table, ids = _draw(VOCABULARY, FEATURES), _make_ids(tokens, frequent)
    gradient = _draw(tokens, FEATURES)
    np.testing.assert_array_equal(_look_up(table, ids), _multiply_one_hot(table, ids))
    np.testing.assert_allclose(
        _differentiate(_look_up, table, ids, gradient),
        _differentiate(_multiply_one_hot, table, ids, gradient),
        rtol=1e-5,
        atol=1e-5 * tokens**0.5,
    )


def test_gradient_in_bfloat16_of_a_frequent_token() -> None:
    """The error is at most that of the product; XLA's scatter loses half of the gradient."""
    ids = _make_ids(8000)
    table = _draw(VOCABULARY, FEATURES).astype(jnp.bfloat16)
    gradient = _draw(len(ids), FEATURES).astype(jnp.bfloat16)
    expected = np.zeros((VOCABULARY, FEATURES))
    np.add.at(expected, np.asarray(ids), np.asarray(gradient, np.float64))

    def find_error(look_up: Any) -> float:
        computed = _differentiate(look_up, table, ids, gradient)
        assert computed.dtype == jnp.bfloat16
        error = np.abs(np.asarray(computed, np.float64) - expected)
        return float(error.max() / np.abs(expected).max())

    assert find_error(_look_up) <= find_error(_multiply_one_hot) < 4e-3
    assert find_error(lambda table, ids: table[ids]) > 0.1


def test_ids_outside_are_left_out() -> None:
    ids = jnp.asarray([-1, 3, 5, 3, -2], jnp.int32)
    total = embedding_lookup.sum_rows(ids, jnp.ones((5, 2)), 5)
    np.testing.assert_array_equal(total, [[0, 0], [0, 0], [0, 0], [2, 2], [0, 0]])


@pytest.fixture(scope="module")
def differences() -> dict[str, Any]:
    """The differences of rows and gradients on 8 devices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sharded_embedding_lookup"],
        cwd=ROOT,
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    parsed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.mark.parametrize("name", [*LAYOUTS, *(f"{name}, uneven" for name in LAYOUTS)])
def test_same_on_a_mesh(differences: dict[str, Any], name: str) -> None:
    rows, gradient = differences[name]
    assert rows == 0
    assert gradient < 1e-5
