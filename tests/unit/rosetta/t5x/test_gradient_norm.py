"""The norm of sharded gradients is computed once, with one number for each set of mesh axes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "optax")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from rosetta.t5x import gradient_norm

ROOT = Path(__file__).resolve().parents[4]
GRADIENTS = {"kernel": np.array([[3.0, -4.0]], np.float32), "scale": np.array([12.0], np.float32)}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.t5x_gradient_norms"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_the_norm_of_shards_is_that_of_the_whole(found: dict[str, Any]) -> None:
    assert found["norm"] == pytest.approx(found["expected"], rel=1e-6)


def test_clipping_is_that_of_optax(found: dict[str, Any]) -> None:
    assert found["error"] < 1e-6
    assert found["same_state"]


def test_devices_exchange_one_number_for_each_set_of_axes(found: dict[str, Any]) -> None:
    """Three of the five gradients are split: one over data, two over data and model."""
    assert found["summed_numbers"] == 2


@pytest.mark.parametrize("largest", [0.5, 100.0])
@pytest.mark.parametrize("scale", [1.0, np.inf, np.nan])
def test_without_a_given_norm_it_clips_by_its_own(largest: float, scale: float) -> None:
    gradients = {**GRADIENTS, "scale": GRADIENTS["scale"] * np.float32(scale)}
    results = []
    for clip in (gradient_norm.clip_by_global_norm, optax.clip_by_global_norm):
        transformation = clip(largest)
        results.append(transformation.update(gradients, transformation.init(gradients))[0])
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_given_norm_counts_inside_the_context_only() -> None:
    clipping = gradient_norm.clip_by_global_norm(1.0)
    with gradient_norm.give_norm(jnp.float32(2.0)):
        halved, _ = clipping.update(GRADIENTS, clipping.init(GRADIENTS))
    np.testing.assert_array_equal(halved["scale"], [6.0])
    clipped, _ = clipping.update(GRADIENTS, clipping.init(GRADIENTS))
    np.testing.assert_allclose(clipped["scale"], [12.0 / 13.0], rtol=1e-6)


def test_whole_gradients_have_optax_s_norm() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    norm = gradient_norm.compute_global_norm(GRADIENTS, {"kernel": None, "scale": None}, mesh)
    assert norm == optax.global_norm(GRADIENTS) == 13.0
