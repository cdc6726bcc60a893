"""The training step: FP8 state whatever the microbatches and devices, and out of everything that is done to parameters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rosetta import jaxkit

jaxkit.need("jax", "flax", "t5x", "seqio")

import jax
import numpy as np

from rosetta.nn import fp8

ROOT = Path(__file__).resolve().parents[3]


def _program(what: str) -> Any:
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "tests.rosetta.t5x.fp8_steps", what], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def steps() -> Any:
    """Two steps on each way to compute them."""
    return _program("state")


@pytest.mark.parametrize("way", ["2 microbatches", "4 microbatches", "scanned", "4 devices", "4 devices, 2 microbatches, one reduction"])
def test_the_state_is_the_same(steps: Any, way: str) -> None:
    plain, other = steps["plain"], steps[way]
    assert plain["state"].keys() == other["state"].keys()
    for name, values in plain["state"].items():
        np.testing.assert_allclose(other["state"][name], values, rtol=2e-3, err_msg=name)
        if name.endswith("history"):
            assert values[0] > 0  # the second step's magnitude
            assert values[1] > 0  # the first one's
            assert values[2] == 0  # and no more than one of each step
    np.testing.assert_allclose(other["losses"], plain["losses"], rtol=1e-3)


def test_fused_and_single_projections_share_a_tree(steps: Any) -> None:
    plain, fused = steps["plain"]["state"], steps["fused"]["state"]
    assert plain.keys() == fused.keys()
    for name, values in plain.items():
        if "kernel" in name.rpartition("/")[2]:
            np.testing.assert_allclose(fused[name], values, rtol=2e-3, err_msg=name)


def test_fp8_learns_what_bfloat16_learns() -> None:
    found = _program("losses")
    assert found["off"][-1] < 0.5 * found["off"][0]
    ends = {kind: np.mean(losses[-20:]) for kind, losses in found.items()}
    assert abs(ends["xla"] / ends["off"] - 1) < 0.02, ends


def test_the_state_is_no_parameter() -> None:
    from tests.rosetta.t5x import fp8_steps

    made = fp8_steps.trainer()
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(made.train_state.params)}
    assert not [name for name in names if "scale'" in name and "norm" not in name]
    assert not [name for name in names if "amax" in name]
    moments = jax.tree_util.tree_leaves_with_path(made.train_state.param_states)
    assert not [path for path, _ in moments if "amax" in jax.tree_util.keystr(path)]
    saved = made.train_state.state_dict()
    assert "amax" not in str(jax.tree_util.tree_structure(saved["target"]))
    assert fp8.COLLECTION in saved["flax_mutables"]
    axes = made._train_state_axes.flax_mutables
    assert jax.tree.structure(axes, is_leaf=lambda each: each is None) is not None
