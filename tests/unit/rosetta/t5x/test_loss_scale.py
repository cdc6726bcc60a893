"""With float16, the loss is scaled: overflows are left out, and losses are those of float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x.utils", "seqio")

import flax
import jax
import jax.numpy as jnp
import numpy as np

from rosetta.t5x import loss_scale, trainer
from tests.support.t5x_topologies import BATCH, Run, make_batch

STEPS = 4
METRICS = (
    "loss",
    trainer._GRADIENT_NORM,
    trainer._LOSS_SCALE,
    trainer._OVERFLOWS,
    trainer._SKIPPED_METRIC,
)


@pytest.mark.parametrize(
    ("scale", "steps", "finite", "expected"),
    [
        (1024.0, 0, True, (1024.0, 1)),
        (1024.0, loss_scale.GROWTH_INTERVAL - 1, True, (2048.0, 0)),
        (1024.0, loss_scale.GROWTH_INTERVAL - 1, False, (512.0, 0)),
        (1024.0, 7, False, (512.0, 0)),
        (1.0, 7, False, (1.0, 0)),
        (loss_scale.LARGEST_SCALE, loss_scale.GROWTH_INTERVAL - 1, True, (2.0**24, 0)),
    ],
)
def test_the_scale_grows_and_halves(
    scale: float, steps: int, finite: bool, expected: tuple[float, int]
) -> None:
    state = {loss_scale.SCALE: jnp.float32(scale), loss_scale.FINITE_STEPS: jnp.int32(steps)}
    after = loss_scale.advance_state(state, jnp.bool_(finite))
    assert (float(after[loss_scale.SCALE]), int(after[loss_scale.FINITE_STEPS])) == expected


def read_scale(run: Run) -> float:
    return float(run.trainer.train_state.flax_mutables[loss_scale.COLLECTION][loss_scale.SCALE])


def set_scale(run: Run, scale: float) -> None:
    state = {loss_scale.SCALE: jnp.float32(scale), loss_scale.FINITE_STEPS: jnp.int32(0)}
    run.trainer.train_state = run.trainer.train_state.replace_flax_mutables(
        flax.core.freeze({loss_scale.COLLECTION: state})
    )


def take_step(run: Run) -> dict[str, float]:
    """Train one step, and return those of METRICS that it has."""
    state = run.trainer.train_state
    run.trainer.train_state, metrics = run.trainer._partitioned_train_step(
        state, make_batch(int(state.step), BATCH)
    )
    return {name: float(metrics[name].compute_value().value) for name in METRICS if name in metrics}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(str(tmp_path_factory.mktemp("half")), 1, microbatches=2, dtype="float16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(str(tmp_path_factory.mktemp("whole")), 1, microbatches=2)


def test_a_state_without_float16_has_no_scale(whole: Run) -> None:
    assert not whole.trainer.train_state.flax_mutables


def test_an_overflow_is_left_out_and_training_goes_on_as_in_float32(half: Run, whole: Run) -> None:
    """The first step overflows, since the gradients are planted to be too large for float16."""
    set_scale(half, 2.0**24)
    before = jax.device_get(half.trainer.train_state.state_dict())
    metrics = take_step(half)
    after = jax.device_get(half.trainer.train_state.state_dict())
    assert read_scale(half) == metrics[trainer._LOSS_SCALE] == 2.0**23
    assert metrics[trainer._OVERFLOWS] == 1
    assert metrics[trainer._SKIPPED_METRIC] == 0  # no bad step: a smaller scale is the cure
    assert after["state"]["step"] == before["state"]["step"] + 1
    for part in ("target", "state"):
        before[part].pop("step", None)
        after[part].pop("step", None)
        jax.tree.map(np.testing.assert_array_equal, before[part], after[part])

    # From here on with the batches that float32 has.
    set_scale(half, 2.0**10)
    half.trainer.train_state = half.trainer.train_state.replace_step(jnp.int32(0))
    for _ in range(STEPS):
        in_half, in_whole = take_step(half), take_step(whole)
        assert in_half[trainer._OVERFLOWS] == 0
        for name in ("loss", trainer._GRADIENT_NORM):
            assert in_half[name] == pytest.approx(in_whole[name], rel=5e-3), name
    assert read_scale(half) == 2.0**10


def test_an_overflow_with_the_smallest_scale_is_a_bad_step(half: Run) -> None:
    set_scale(half, loss_scale.SMALLEST_SCALE)
    state = half.trainer.train_state
    broken = jax.tree.map(jnp.copy, state.params)
    half.trainer.train_state = state.replace_params(
        jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.inf), broken)
    )
    metrics = take_step(half)
    half.trainer.train_state = state.replace_params(broken)
    assert metrics[trainer._SKIPPED_METRIC] == 1
    assert metrics[trainer._LOSS_SCALE] == loss_scale.SMALLEST_SCALE


def test_a_resumed_run_has_the_scale_and_the_losses_of_the_run(tmp_path: Path) -> None:
    first = Run(f"{tmp_path}/first", 1, dtype="float16")
    set_scale(first, 2.0**9)
    first.steps(2)
    first.manager.save(first.trainer.train_state)
    first.manager.close()
    start = f"{tmp_path}/first/checkpoint_2"
    resumed = Run(f"{tmp_path}/second", 1, dtype="float16", start=start)
    assert read_scale(resumed) == 2.0**9
    counted = resumed.trainer.train_state.flax_mutables[loss_scale.COLLECTION]
    assert int(counted[loss_scale.FINITE_STEPS]) == 2
    losses = first.steps(STEPS)
    assert resumed.steps(STEPS) == pytest.approx(losses, rel=1e-6)
    # A run with another type of activations resumes from it, too.
    other = Run(f"{tmp_path}/third", 1, start=start)
    assert not other.trainer.train_state.flax_mutables
    assert other.steps(3) == pytest.approx(losses[:1], rel=5e-3)


def test_a_run_that_becomes_float16_begins_with_the_first_scale(tmp_path: Path) -> None:
    plain = Run(f"{tmp_path}/plain", 1)
    plain.manager.save(plain.trainer.train_state)
    plain.manager.close()
    half = Run(f"{tmp_path}/half", 1, dtype="float16", start=f"{tmp_path}/plain/checkpoint_0")
    assert read_scale(half) == loss_scale.INITIAL_SCALE
