from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rosetta.health import bad_losses
from rosetta.health.bad_losses import BadStep, LossMonitor


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_bad(loss: float) -> None:
    monitor = LossMonitor()
    assert monitor.check_loss(0, 3.0) is None
    found = monitor.check_loss(1, loss)
    assert found is not None
    assert (found.step, found.why) == (1, f"the loss is {loss}")


def test_a_spike_is_one_over_the_running_median() -> None:
    monitor = LossMonitor(spike=2.0)
    assert monitor.check_loss(0, 50.0) is None  # nothing is known yet
    for step in range(1, 40):
        assert monitor.check_loss(step, 3.0 + 0.1 * (step % 3)) is None
    assert monitor.check_loss(40, 6.0) is None
    found = monitor.check_loss(41, 7.0)
    assert found is not None
    assert found.why == "the loss is 7, over 2 times the median of the last 41 steps, 3.1"
    assert LossMonitor().check_loss(0, 1e30) is None  # none is looked for unless asked


def test_those_that_come_in_a_row_are_counted() -> None:
    monitor = LossMonitor()
    for step, loss in enumerate([1.0, math.nan, math.nan, math.nan]):
        monitor.check_loss(step, loss)
    assert monitor.bad_in_a_row == 3
    monitor.check_loss(4, 1.0)
    assert monitor.bad_in_a_row == 0


def test_the_dump_says_what_is_known(tmp_path: Path) -> None:
    bad = BadStep(7, math.nan, "the loss is nan")
    batch = {"step": 7, "hash": "ab", "examples": [56, 57]}
    for rank in range(2):
        into = bad_losses.write_dump(
            str(tmp_path),
            rank,
            bad,
            [(6, 2.5), (7, math.nan)],
            batch,
            {"layer/kernel_scale": [0.5, math.inf]},
        )
    assert Path(into) == tmp_path / "bad_step_7"
    found = {path.name: json.loads(path.read_text()) for path in Path(into).iterdir()}
    assert found == {
        "loss.json": {
            "step": 7,
            "loss": "nan",
            "why": "the loss is nan",
            "losses": [[6, 2.5], [7, "nan"]],
        },
        "fp8.json": {"layer/kernel_scale": [0.5, "inf"]},
        "batch-0000.json": batch,
        "batch-0001.json": batch,
    }
