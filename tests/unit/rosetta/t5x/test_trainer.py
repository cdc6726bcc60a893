"""The training step: the FP8 state, microbatches, gradient reduction and reports."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "t5x", "seqio")

import flax
import jax
import numpy as np
from jax.sharding import PartitionSpec
from t5x import trainer as upstream

from rosetta.core.errors import UserError
from rosetta.nn import fp8
from rosetta.t5x import network, trainer
from tests.support import t5x_fp8_steps

ROOT = Path(__file__).resolve().parents[4]


def _program(what: str, flags: str = "") -> Any:
    env = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {flags}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.t5x_fp8_steps", what],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def steps() -> Any:
    """Two steps on each way to compute them, which is mostly compilation."""
    return _program("state", "--xla_backend_optimization_level=0")


@pytest.mark.parametrize(
    "way",
    [
        "2 microbatches",
        "4 microbatches",
        "scanned",
        "4 devices",
        "4 devices, 2 microbatches, one reduction",
    ],
)
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


@pytest.mark.parametrize("way", [way for way in t5x_fp8_steps.STEPS if way.startswith("kernel")])
def test_the_kernels_give_the_same_state(steps: Any, way: str) -> None:
    """The state is that of fused projections without the kernels, however a step is divided."""
    fused, other = steps["fused"], steps[way]
    assert fused["kernels"] == [0, 0]
    assert all(other["kernels"])
    assert fused["state"].keys() == other["state"].keys()
    for name, values in fused["state"].items():
        np.testing.assert_allclose(other["state"][name], values, rtol=2e-3, err_msg=name)
    np.testing.assert_allclose(other["losses"], fused["losses"], rtol=1e-3)


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
    return t5x_fp8_steps.make_trainer()


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def test_the_state_is_no_parameter(made: Any) -> None:
    mutables = _names(made.train_state.flax_mutables)
    assert len(mutables) == (2 * 7 + 2 * 11) * 6  # of each projection
    others = [*_names(made.train_state.params), *_names(made.train_state.param_states)]
    assert not [
        name
        for name in others
        if any(
            each in name for each in ("amax", "input_scale", "kernel_scale", "output_grad_scale")
        )
    ]
    saved = made.train_state.state_dict()
    assert "amax" not in str(jax.tree_util.tree_structure(saved["target"]))
    assert fp8.COLLECTION in saved["flax_mutables"]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_norms_clipping_and_the_optimizer_are_given_gradients_of_parameters_alone(
    made: Any, microbatches: int
) -> None:
    params, state = made.train_state.params, flax.core.unfreeze(made.train_state.flax_mutables)

    def gradients(params: Any, state: Any, batch: Any) -> Any:
        found, _, seen = trainer.compute_gradients(
            made._model, params, state, batch, jax.random.PRNGKey(0), microbatches, None
        )
        return found, seen

    found, seen = jax.eval_shape(gradients, params, state, t5x_fp8_steps.make_batch(0))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert _names(seen) == _names(state)


def test_no_part_of_the_state_is_sharded(made: Any) -> None:
    axes = jax.tree.leaves(
        made._train_state_axes.flax_mutables, is_leaf=lambda each: isinstance(each, PartitionSpec)
    )
    assert len(axes) == len(jax.tree.leaves(made.train_state.flax_mutables))
    assert not [each for each in axes if any(each)]


def test_a_trainer_asks_whether_its_devices_have_fp8(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(devices: Any) -> None:
        raise UserError("", "ENABLE_FP8", "", kind=errors.UNSUPPORTED, value=len(devices))

    monkeypatch.setattr(fp8, "require_fp8", refuse)
    with errors.expect_user_error(errors.UNSUPPORTED, where="ENABLE_FP8", value=1):
        _trainer(made)


@pytest.mark.parametrize(("spec", "whose"), [(PartitionSpec("data"), "a batch"), (None, "a group")])
def test_rows_that_would_be_left_out_of_microbatches(made: Any, spec: Any, whose: str) -> None:
    with errors.expect_user_error(
        errors.INVALID, where="num_microbatches", value=3, names=("8", whose), remedy="8"
    ):
        trainer.compute_gradients(
            made._model,
            made.train_state.params,
            {},
            t5x_fp8_steps.make_batch(0),
            jax.random.PRNGKey(0),
            3,
            spec,
        )


def _trainer(made: Any, **others: Any) -> Any:
    """Another trainer of the same state."""
    how = {
        name: getattr(made, f"_{name}")
        for name in ("model", "partitioner", "train_state_axes", "learning_rate_fn")
    }
    settings: dict[str, Any] = {
        "train_state": made.train_state,
        "eval_names": [],
        "summary_dir": None,
        "rng": jax.random.PRNGKey(0),
        "num_microbatches": None,
    }
    return trainer.Trainer(**{**how, **settings, **others})


def test_gradient_dtype_with_transformer_engine_is_refused(made: Any) -> None:
    model = copy.copy(made._model)
    model.module = network.Transformer(dataclasses.replace(model.config, fp8="te"))
    with errors.expect_user_error(errors.CONFLICT, where="GRADIENT_DTYPE", remedy="ENABLE_TE=0"):
        _trainer(made, model=model, gradient_dtype="float32")


class _Failing:
    """A writer of progress that fails, and the result of upstream's training."""

    def write(self, report: Any) -> None:
        raise RuntimeError(f"nothing can be said of step {report.step}")

    def result(self) -> Any:
        return {"timing/steps_per_second": types.SimpleNamespace(value=2.0)}


@pytest.fixture
def failing(made: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer whose steps are none and whose reports fail."""
    monkeypatch.setattr(
        upstream.Trainer, "train", lambda _, batches, *__: list(batches) and _Failing()
    )
    found = _trainer(made)
    found._reporter = _Failing()
    return found


def test_the_error_of_a_report_is_raised_when_the_run_ends(failing: Any) -> None:
    failing.train(iter([t5x_fp8_steps.make_batch(0)]), 1, 0)
    with pytest.raises(RuntimeError, match="nothing can be said of step 1"):
        failing.close()


def test_the_error_of_a_report_is_raised_by_the_next_training(failing: Any) -> None:
    failing.train(iter([t5x_fp8_steps.make_batch(0)]), 1, 0)
    failing._report_executor.shutdown()
    with pytest.raises(RuntimeError, match="nothing can be said of step 1"):
        failing.train(iter([t5x_fp8_steps.make_batch(1)]), 1, 1)
    failing.close()  # each is raised once


def test_the_last_report_is_sent_before_the_run_ends_in_its_services(made: Any) -> None:
    found = _trainer(made)
    found._start_health(0)
    calls: list[str] = []

    def send() -> None:
        time.sleep(0.3)
        calls.append("sent")

    found._health._tracked_runs = [types.SimpleNamespace(close=lambda: calls.append("closed"))]
    found._reports.append(found._report_executor.submit(send))
    found.close()
    assert calls == ["sent", "closed"]


def test_batches_end_as_any_iterators_do(made: Any) -> None:
    given = [t5x_fp8_steps.make_batch(0), t5x_fp8_steps.make_batch(1)]
    found = _trainer(made)
    found._start_health(0)
    seen = found._follow_batches(iter(given), 0)
    assert [next(seen) is each for each in given] == [True, True]
    with pytest.raises(StopIteration):
        next(seen)
    found.close()


@pytest.mark.parametrize("fine", [True, False])
def test_an_update_with_gradients_that_are_not_finite_is_skipped(made: Any, fine: bool) -> None:
    before = made.train_state
    gradients = jax.tree.map(np.ones_like, before.params)
    if not fine:
        first, *others = jax.tree.leaves(gradients)
        first.flat[0] = np.nan
        gradients = [first, *others]
    after = before.replace_params(jax.tree.map(lambda leaf: leaf + 1, before.params)).replace_step(
        before.step + 1
    )
    found, told = trainer._select_finite_update(gradients, after, before)
    assert bool(told) is fine
    assert int(found.step) == int(before.step) + 1
    wanted = after if fine else before
    for one, other in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(wanted.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)
