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

import flax
import jax
import numpy as np
from jax.sharding import PartitionSpec

from rosetta.nn import fp8

ROOT = Path(__file__).resolve().parents[3]


def _program(what: str, flags: str = "") -> Any:
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {flags}", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "tests.rosetta.t5x.fp8_steps", what], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def steps() -> Any:
    """Two steps on each way to compute them, which is mostly compilation."""
    return _program("state", "--xla_backend_optimization_level=0")


@pytest.mark.parametrize("way", ["2 microbatches", "4 microbatches", "scanned", "4 devices", "4 devices, 2 microbatches, one reduction"])
def test_the_state_is_the_same(steps: Any, way: str) -> None:
    plain, other = steps["plain"], steps[way]
    assert plain["state"].keys() == other["state"].keys()
    for name, values in plain["state"].items():
        np.testing.assert_allclose(other["state"][name], values, rtol=2e-3, err_msg=name)
        if name.endswith("history"):
            assert values[0] > 0  # the first step's magnitude
            assert values[1] > 0  # the second one's
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


@pytest.fixture(scope="module")
def made() -> Any:
    from tests.rosetta.t5x import fp8_steps

    return fp8_steps.trainer()


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_the_state_is_no_parameter(made: Any) -> None:
    mutables = _names(made.train_state.flax_mutables)
    assert len(mutables) == (2 * 7 + 2 * 11) * 6  # of each projection
    others = [*_names(made.train_state.params), *_names(made.train_state.param_states)]
    assert not [name for name in others if any(each in name for each in ("amax", "input_scale", "kernel_scale", "output_grad_scale"))]
    saved = made.train_state.state_dict()
    assert "amax" not in str(jax.tree_util.tree_structure(saved["target"]))
    assert fp8.COLLECTION in saved["flax_mutables"]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_norms_clipping_and_the_optimizer_are_given_gradients_of_parameters_alone(made: Any, microbatches: int) -> None:
    from rosetta.t5x import trainer
    from tests.rosetta.t5x import fp8_steps

    params, state = made.train_state.params, flax.core.unfreeze(made.train_state.flax_mutables)

    def gradients(params: Any, state: Any, batch: Any) -> Any:
        found, _, seen = trainer.gradients(made._model, params, state, batch, jax.random.PRNGKey(0), microbatches, None)
        return found, seen

    found, seen = jax.eval_shape(gradients, params, state, fp8_steps.batch(0))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert _names(seen) == _names(state)


def test_no_part_of_the_state_is_sharded(made: Any) -> None:
    axes = jax.tree.leaves(made._train_state_axes.flax_mutables, is_leaf=lambda each: isinstance(each, PartitionSpec))
    assert len(axes) == len(jax.tree.leaves(made.train_state.flax_mutables))
    assert not [each for each in axes if any(each)]


def test_a_trainer_asks_whether_its_devices_have_fp8(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rosetta.errors import UserError
    from rosetta.t5x.trainer import Trainer

    def refuse(devices: Any) -> None:
        raise UserError(f"{len(devices)} devices have no FP8", "ENABLE_FP8", "switch it off")

    monkeypatch.setattr(fp8, "require", refuse)
    how = {name: getattr(made, f"_{name}") for name in ("model", "partitioner", "train_state_axes", "learning_rate_fn")}
    with pytest.raises(UserError, match="1 devices have no FP8"):
        Trainer(**how, train_state=made.train_state, eval_names=[], summary_dir=None, rng=jax.random.PRNGKey(0), num_microbatches=None)


def test_a_batch_that_does_not_divide_is_one_line(made: Any) -> None:
    from rosetta.errors import UserError
    from rosetta.t5x import trainer
    from tests.rosetta.t5x import fp8_steps

    with pytest.raises(UserError, match=r"8 rows .* 3 microbatches"):
        trainer.gradients(made._model, made.train_state.params, {}, fp8_steps.batch(0), jax.random.PRNGKey(0), 3, None)
