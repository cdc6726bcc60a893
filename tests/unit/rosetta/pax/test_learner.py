"""The learner: FP8 state whatever the microbatches, repetition and devices, and out of all norms; gradients of parts of a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_current("jax", "flax", "praxis", "paxml")

import jax
import jax.numpy as jnp
import numpy as np
from paxml import learners, sgf
from praxis import base_layer, optimizers, pax_fiddle, py_utils, schedules

from rosetta.core.errors import UserError
from rosetta.nn import fp8
from rosetta.pax import learner
from tests.unit.rosetta.nn import test_fp8 as plain

ROOT = Path(__file__).resolve().parents[4]
WAYS = (
    "2 microbatches",
    "4 microbatches",
    "4 devices",
    "repeated",
    "repeated, 4 devices, 2 microbatches",
)


def _run_program(what: str, flags: str = "") -> Any:
    env = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {flags}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.pax_fp8_steps", what],
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
    return _run_program("state", "--xla_backend_optimization_level=0")


@pytest.mark.parametrize("way", WAYS)
def test_the_state_is_the_same(steps: Any, way: str) -> None:
    expected, found = steps["stacked" if "repeated" in way else "plain"], steps[way]
    expected = expected.get("state", expected)
    assert found["state"].keys() == expected.keys()
    # Where models are split, sums are in another order, and what is rounded to the other of two neighbours in FP8 is 6% apart in the next step.
    second = 0.1 if way == "4 devices" else 5e-3
    for name, values in expected.items():
        if name.endswith("history"):
            newest, rest = found["state"][name]
            first, before = (np.asarray(each)[..., 0] for each in (newest, values[0]))
            np.testing.assert_allclose(first, before, rtol=1e-3, err_msg=name)
            np.testing.assert_allclose(newest, values[0], rtol=second, err_msg=name)
            assert np.min(newest) > 0  # of both steps
            assert rest == 0  # and no more than one of each
        else:
            np.testing.assert_allclose(found["state"][name], values, rtol=second, err_msg=name)
    np.testing.assert_allclose(found["losses"], steps["plain"]["losses"], rtol=1e-3)


def test_norms_are_those_of_parameters(steps: Any) -> None:
    told = steps["plain"]["summaries"]
    assert not [
        name for name in told if "amax" in name or "_scale" in name.replace("grad_scale", "")
    ]
    norms = [value for name, value in told.items() if name.startswith("vars/")]
    assert norms
    assert max(norms) < 2  # a history holds what activations come to
    assert (
        abs(told["learning/var_norm_aggregate_scalar"] / steps["norm"] - 1) < 0.2
    )  # before the second step


def test_fp8_learns_what_bfloat16_learns() -> None:
    found = _run_program("losses")
    assert found["bfloat16"][-1] < 0.5 * found["bfloat16"][0]
    ends = {kind: np.mean(losses[-20:]) for kind, losses in found.items()}
    assert abs(ends["fp8"] / ends["bfloat16"] - 1) < 0.02, ends


def test_stacked_states_advance_as_single_ones() -> None:
    states = [plain._state(index) for index in range(3)]
    seen = [
        jax.tree.map(
            lambda leaf, index=index: (
                jnp.full(leaf.shape, 2.0 + index) if leaf.shape[0] > 1 else leaf
            ),
            state,
        )
        for index, state in enumerate(states)
    ]
    stacked = fp8.advance_states(
        {"it": jax.tree.map(lambda *each: jnp.stack(each), *states)},
        {"it": jax.tree.map(lambda *each: jnp.stack(each), *seen)},
        5,
    )
    for index in range(3):
        for name, leaf in fp8.advance_states({"it": states[index]}, {"it": seen[index]}, 5)[
            "it"
        ].items():
            np.testing.assert_allclose(stacked["it"][name][index], leaf, rtol=1e-6)


def _make_learner(kind: Any, **more: Any) -> Any:
    optimizer = pax_fiddle.Config(
        optimizers.Adam,
        learning_rate=0.1,
        lr_schedule=pax_fiddle.Config(schedules.Constant),
        weight_decay=0.5,
        clip_gradient_norm_to_value=1.0,
    )
    return pax_fiddle.build(
        pax_fiddle.Config(kind, name="it", loss_name="total_loss", optimizer=optimizer, **more)
    )


def _make_variables() -> tuple[Any, Any]:
    """A kernel and FP8 state, with what praxis knows of them."""
    kinds = base_layer.WeightHParamsCollection
    hparams = {
        "params": {
            "w": base_layer.WeightHParams([4, 4]),
            "einsum": {
                name: base_layer.WeightHParams(
                    list(leaf.shape), collections=[kinds.OVERWRITE_WITH_GRADIENT]
                )
                for name, leaf in plain._state(0).items()
            },
        }
    }
    return hparams, {"params": {"w": jnp.ones((4, 4)), "einsum": plain._state(0)}}


@pytest.mark.parametrize("broken", [False, True])
def test_parameters_change_as_with_upstreams_learner(broken: bool) -> None:
    hparams, variables = _make_variables()
    size = jnp.nan if broken else 3.0
    gradients = {
        "params": {
            "w": jnp.full((4, 4), size),
            "einsum": jax.tree.map(
                lambda leaf: leaf * 0 + 7.0 if leaf.shape[0] > 1 else leaf, plain._state(0)
            ),
        }
    }
    made = {}
    for kind, trees in (
        (learner.Learner, (hparams, variables, gradients)),
        (
            learners.Learner,
            [{"params": {"w": tree["params"]["w"]}} for tree in (hparams, variables, gradients)],
        ),
    ):
        it = _make_learner(kind)
        masked = [
            jax.tree.map(
                lambda each, leaf: (
                    py_utils.BpropMaskedNode()
                    if base_layer.var_overwrite_with_gradient(each)
                    else leaf
                ),
                trees[0],
                tree,
            )
            for tree in (trees[0], trees[1])
        ]
        transform = it.get_grad_tx(masked[0])
        with base_layer.JaxContext.new_context():
            changed, following = it.update_states(
                trees[2], transform.init(masked[1]), trees[1], trees[0]
            )
            made[kind] = it.apply_gradient(trees[1], changed, trees[0])["params"]
        del following
    np.testing.assert_array_equal(made[learner.Learner]["w"], made[learners.Learner]["w"])
    expected = fp8.advance_states(
        {"it": plain._state(0)}, {"it": gradients["params"]["einsum"]}, 0
    )["it"]  # of a step that is left out, too
    for name, leaf in expected.items():
        np.testing.assert_array_equal(made[learner.Learner]["einsum"][name], leaf, err_msg=name)


def test_a_learner_checks_that_its_devices_have_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(devices: Any) -> None:
        raise UserError("", "ENABLE_FP8", "", kind=errors.UNSUPPORTED, value=len(devices))

    monkeypatch.setattr(fp8, "require_fp8", refuse)
    with errors.expect_user_error(errors.UNSUPPORTED, where="ENABLE_FP8", value=len(jax.devices())):
        _make_learner(learner.Learner)


def _compute_loss(variables: Any, rest: Any, key: Any) -> Any:
    """A weighted mean, as paxml's loss functions return it."""
    del key
    rows = rest[1]
    weight = jnp.sum(rows.weights)
    mean = jnp.sum(rows.weights * (rows.x @ variables["w"] - 1) ** 2) / weight
    each = {"total_loss": (mean, weight)}
    return mean, sgf.GradAuxInfo(
        aux_info=(mean, each, {}, {"it_scalar": mean}, {"x": rows.x[:, 0]}, {}), loss_weight=1.0
    )


@pytest.mark.parametrize("count", [2, 3, 6])
def test_parts_of_a_batch_give_the_gradient_of_the_whole(count: int) -> None:
    drawn = np.random.default_rng(0)
    rows = py_utils.NestedMap(
        x=jnp.asarray(drawn.normal(size=(6, 4)), jnp.float32),
        weights=jnp.asarray(drawn.integers(1, 9, 6), jnp.float32),
    )
    variables = {"w": jnp.asarray(drawn.normal(size=4), jnp.float32)}
    expected = pax_fiddle.build(pax_fiddle.Config(sgf.StandardGradient)).grad_fn(
        _compute_loss, variables, ({}, rows), jax.random.PRNGKey(0)
    )
    found = pax_fiddle.build(pax_fiddle.Config(learner.Microbatches, count=count)).grad_fn(
        _compute_loss, variables, ({}, rows), jax.random.PRNGKey(0)
    )
    for one, other in zip(
        jax.tree.leaves((found[0][0], found[0][1].aux_info[:2], found[0][1].aux_info[4], found[1])),
        jax.tree.leaves(
            (expected[0][0], expected[0][1].aux_info[:2], expected[0][1].aux_info[4], expected[1])
        ),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_batch_that_does_not_divide_is_one_line() -> None:
    rows = py_utils.NestedMap(x=jnp.ones((6, 4)), weights=jnp.ones(6))
    with errors.expect_user_error(errors.INVALID, where="NUM_MICROBATCHES", value=4, names="6"):
        pax_fiddle.build(pax_fiddle.Config(learner.Microbatches, count=4)).grad_fn(
            _compute_loss, {"w": jnp.ones(4)}, ({}, rows), jax.random.PRNGKey(0)
        )
