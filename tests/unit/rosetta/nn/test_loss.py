"""The loss over slices of the vocabulary, and its gradients, equal those over all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np

from rosetta.nn import logits, loss

ROOT = Path(__file__).resolve().parents[4]
TOKENS, FEATURES, VOCABULARY = 24, 8, 50
ON_TWO = """\
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rosetta.nn import loss

mesh = Mesh(jax.devices(), ("model",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, "model"))
total = lambda hidden, kernel: jnp.sum(loss.chunked_cross_entropy(hidden, kernel, jnp.arange(24), loss.LossSettings(80, 4))[0])
step = jax.jit(jax.grad(total, argnums=(0, 1)), in_shardings=(whole, split), out_shardings=(whole, split))
print(step.lower(jnp.ones((24, 8)), jnp.ones((8, 80))).compile().as_text())
"""


def _inputs() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(TOKENS, FEATURES)), jnp.float32),
        jnp.asarray(rng.normal(size=(FEATURES, VOCABULARY)), jnp.float32),
        jnp.asarray(rng.integers(0, VOCABULARY, TOKENS), jnp.int32),
    )


def _whole(hidden: Any, kernel: Any, targets: Any, terms: loss.LossSettings) -> tuple[Any, Any]:
    """Return the loss and the z-loss."""
    return _compute_loss((hidden @ kernel) * terms.scale, targets, terms)


def _compute_loss(values: Any, targets: Any, terms: loss.LossSettings) -> tuple[Any, Any]:
    """Return the loss and the z-loss by the formula in T5X's losses.py."""
    high, low = 1.0 - terms.label_smoothing, terms.label_smoothing / (VOCABULARY - 1)
    smoothed = jax.nn.one_hot(targets, VOCABULARY) * (high - low) + low
    total = jax.nn.logsumexp(values, axis=-1)
    least = (
        -(high * np.log(high) + (VOCABULARY - 1) * low * np.log(low + 1e-20))
        if terms.label_smoothing
        else 0.0
    )
    square = terms.z_loss * total**2
    return -jnp.sum(smoothed * jax.nn.log_softmax(values), axis=-1) - least + square, square


@pytest.mark.parametrize("chunks", [1, 3, 7, 50])
@pytest.mark.parametrize(
    ("smoothing", "z_loss", "scale"), [(0.0, 0.0, 1.0), (0.1, 1e-2, 1.0), (0.0, 1e-4, 0.25)]
)
def test_the_chunked_loss_equals_the_whole_loss(
    chunks: int, smoothing: float, z_loss: float, scale: float
) -> None:
    hidden, kernel, targets = _inputs()
    terms = loss.LossSettings(VOCABULARY, chunks, smoothing, z_loss, scale)
    found, square, best = loss.chunked_cross_entropy(hidden, kernel, targets, terms)
    expected, expected_square = _whole(hidden, kernel, targets, terms)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(square, expected_square, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(best, jnp.argmax(hidden @ kernel, axis=-1))

    weights = jnp.linspace(0.0, 2.0, TOKENS)
    gradients = [
        jax.grad(
            lambda hidden, kernel, of=of: jnp.sum(of(hidden, kernel, targets, terms)[0] * weights),
            argnums=(0, 1),
        )(hidden, kernel)
        for of in (loss.chunked_cross_entropy, _whole)
    ]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunks", [1, 3])
def test_narrow_factors_are_those_of_narrow_logits(chunks: int) -> None:
    """The factors of all products are rounded to bfloat16, as in logits.compute_logits."""
    hidden, kernel, targets = _inputs()
    settings = loss.LossSettings(VOCABULARY, chunks, z_loss=1e-2, dtype=jnp.bfloat16)

    def compute_whole(hidden: Any, kernel: Any) -> Any:
        narrow = logits.compute_logits(hidden, kernel, "bfloat16")
        return jnp.sum(_compute_loss(narrow, targets, settings)[0])

    def compute_chunks(hidden: Any, kernel: Any) -> Any:
        return jnp.sum(loss.chunked_cross_entropy(hidden, kernel, targets, settings)[0])

    def compute_wide(hidden: Any, kernel: Any) -> Any:
        return jnp.sum(_whole(hidden, kernel, targets, settings)[0])

    results = [
        jax.tree.leaves(jax.jit(jax.value_and_grad(compute, argnums=(0, 1)))(hidden, kernel))
        for compute in (compute_whole, compute_chunks, compute_wide)
    ]
    for narrow, chunked, wide in zip(*results, strict=True):
        np.testing.assert_allclose(chunked, narrow, rtol=1e-3, atol=1e-3)
        difference = float(jnp.linalg.norm(narrow - wide) / jnp.linalg.norm(wide))
        assert 1e-4 < difference < 1e-2


def test_no_array_of_all_logits_is_made() -> None:
    hidden, kernel, targets = _inputs()
    terms = loss.LossSettings(VOCABULARY, 10)
    text = (
        jax.jit(
            jax.grad(
                lambda *given: jnp.sum(loss.chunked_cross_entropy(*given, targets, terms)[0]),
                argnums=(0, 1),
            )
        )
        .lower(hidden, kernel)
        .as_text()
    )
    assert f"tensor<{TOKENS}x5xf32>" in text
    assert f"tensor<{TOKENS}x{VOCABULARY}xf32>" not in text


def test_the_smallest_id_of_equal_logits_is_the_best_token() -> None:
    hidden, kernel = (
        jnp.ones((1, 1)),
        jnp.zeros((1, VOCABULARY)).at[0, jnp.asarray([13, 30, 44])].set(2.0),
    )
    for chunks in (1, 3, 7, 50):
        assert loss.chunked_cross_entropy(
            hidden, kernel, jnp.zeros(1, jnp.int32), loss.LossSettings(VOCABULARY, chunks)
        )[2].tolist() == [13]


def test_a_sharded_vocabulary_is_not_gathered() -> None:
    """On two devices with half of the kernel each, no device gathers the other's half."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(
        r"f32\[24,10\]\S* (?:dot|fusion|custom-call)\(", done.stdout
    )  # half of a slice's 20 tokens each
    moved = re.findall(
        r"= (\S+) (?:all-to-all|collective-permute|all-gather)(?:-start)?\(", done.stdout
    )
    assert not [shape for shape in moved if "[8," in shape or ",8," in shape], moved
