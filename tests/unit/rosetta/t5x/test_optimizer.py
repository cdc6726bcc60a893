"""AdamW follows the trainer's learning rate and keeps upstream's state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import jax
import numpy as np
import optax
from flax import traverse_util
from t5x import optimizers, utils

from rosetta.t5x import optimizer

PARAMS = {
    "kernel": np.array([[0.5, -1.0], [2.0, 0.25]], np.float32),
    "scale": np.array([1.0, 3.0], np.float32),
}
GRADS = [
    {
        "kernel": np.array([[0.3, -0.2], [0.05, 0.4]], np.float32),
        "scale": np.array([0.01, -0.02], np.float32),
    },
    {
        "kernel": np.array([[30.0, 5.0], [-7.0, 2.0]], np.float32),
        "scale": np.array([1.0, 0.5], np.float32),
    },  # is clipped
]
RATES = [1e-3, 2e-2]


def _trained(definition: Any, rates: list[Any]) -> Any:
    target = definition.create(PARAMS)
    for grads, rate in zip(GRADS, rates, strict=True):
        target = target.apply_gradient(grads, learning_rate=rate)
    return target


def _adamw(rates: list[float], weight_decay: float) -> dict[str, np.ndarray]:
    """AdamW as its paper writes it, in float64, on the gradient clipped to a norm of 1."""
    params = {name: value.astype(np.float64) for name, value in PARAMS.items()}
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, (grads, rate) in enumerate(zip(GRADS, rates, strict=True), 1):
        norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads.values()))
        for name, value in grads.items():
            grad = value.astype(np.float64) / max(norm, 1.0)
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.999 * second[name] + 0.001 * grad**2
            moved = (first[name] / (1 - 0.9**step)) / (
                np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8
            )
            params[name] = params[name] - rate * (moved + weight_decay * params[name])
    return params


def test_each_step_uses_the_trainers_rate() -> None:
    trained = _trained(optimizer.adamw(weight_decay=0.1), RATES).target
    for name, expected in _adamw(RATES, 0.1).items():
        np.testing.assert_allclose(trained[name], expected, rtol=2e-6)


def test_equals_upstreams_at_a_constant_rate_and_has_its_state() -> None:
    theirs = _trained(
        optimizers.chain([optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.01)]),
        [None, None],
    )
    ours = _trained(optimizer.adamw(), [1e-3, 1e-3])
    assert jax.tree.structure(ours.state_dict()) == jax.tree.structure(theirs.state_dict())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        ours.state_dict(),
        theirs.state_dict(),
    )


def test_a_missing_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="learning_rate"):
        _trained(optimizer.adamw(), [None, None])


def test_the_decay_ends_at_its_last_share() -> None:
    rate = utils.create_learning_rate_scheduler(
        factors="linear_decay",
        base_learning_rate=1e-4,
        warmup_steps=100,
        decay_factor=optimizer.decay_per_step(1000, 100, 0.1),
        step_offset=5000,
        min_learning_rate=optimizer.last_rate(1e-4, 0.1),
    )
    assert [float(rate(5000 + step)) for step in (50, 100, 550, 1000, 3000)] == pytest.approx(
        [5e-5, 1e-4, 5.5e-5, 1e-5, 1e-5], rel=1e-4
    )


def test_a_run_shorter_than_its_warmup_does_not_decay() -> None:
    assert optimizer.decay_per_step(20, 10_000, 0.1) == 0.0


def _adamw_rms(rates: list[float], weight_decay: float) -> dict[str, np.ndarray]:
    """AdamW in float64 on the clipped gradient, its updates times the RMS of each parameter."""
    params = {name: value.astype(np.float64) for name, value in PARAMS.items()}
    params["zero"] = np.zeros(2)
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, (grads, rate) in enumerate(zip(_GRADS_WITH_ZERO, rates, strict=True), 1):
        norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads.values()))
        for name, value in grads.items():
            grad = value.astype(np.float64) / max(norm, 1.0)
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.999 * second[name] + 0.001 * grad**2
            unbiased = second[name] / (1 - 0.999**step)
            moved = (first[name] / (1 - 0.9**step)) / (np.sqrt(unbiased) + 1e-6)
            rms = max(1e-3, np.linalg.norm(params[name]) / np.sqrt(params[name].size))
            params[name] = params[name] - rate * (rms * moved + weight_decay * params[name])
    return params


_GRADS_WITH_ZERO = [{**grads, "zero": np.array([0.2, -0.1], np.float32)} for grads in GRADS]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rms_scaling_multiplies_each_update_by_the_size_of_its_parameter(
    weight_decay: float,
) -> None:
    definition: Any = optimizer.adamw_rms(weight_decay=weight_decay)
    target = definition.create({**PARAMS, "zero": np.zeros(2, np.float32)})
    for grads, rate in zip(_GRADS_WITH_ZERO, RATES, strict=True):
        target = target.apply_gradient(grads, learning_rate=rate)
    for name, expected in _adamw_rms(RATES, weight_decay).items():
        np.testing.assert_allclose(target.target[name], expected, rtol=2e-5, err_msg=name)


def test_the_states_of_adamw_with_and_without_rms_scaling_are_told_apart() -> None:
    """A resumed run compares the names of the arrays, so that they must not be the same."""

    def list_names(definition: Any) -> set[str]:
        state = definition.create(PARAMS).state_dict()["state"]["param_states"]
        return set(traverse_util.flatten_dict(state, sep="/"))

    assert list_names(optimizer.adamw()).isdisjoint(list_names(optimizer.adamw_rms()))


@pytest.mark.parametrize("offset", [0, 5000])
def test_the_cosine_ends_at_its_last_share_and_stays_there(offset: int) -> None:
    rate = optimizer.cosine_decay(
        peak=0.02, steps=1000, warmup_steps=100, last=0.1, step_offset=offset
    )
    for step in (0, 1, 50, 100, 250, 550, 999, 1000, 1001, 5000):
        expected = 0.02 * step / 100
        if step > 100:
            share = min(1.0, (step - 100) / 900)
            expected = 0.002 + (0.02 - 0.002) * 0.5 * (1 + np.cos(np.pi * share))
        assert float(rate(offset + step)) == pytest.approx(expected, rel=1e-5), step
    assert float(rate(max(0, offset - 10))) == 0.0


def test_a_cosine_shorter_than_its_warmup_does_not_fall() -> None:
    rate = optimizer.cosine_decay(peak=0.02, steps=20, warmup_steps=100, last=0.1)
    assert float(rate(20)) == pytest.approx(0.004)
