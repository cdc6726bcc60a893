from __future__ import annotations

import re
from pathlib import Path

import pytest

from rosetta.selftest import tensorboard_events, training
from rosetta.selftest.child_process import Context
from tests.support.fake_workload import FakeWorkload


def train(fault: str, tmp_path: Path, said: list[str] | None = None) -> training.TrainingRun:
    context = Context(tmp_path / "cache", (said if said is not None else []).append)
    return training.train_and_resume(
        context, FakeWorkload(fault), tmp_path / "run", steps=20, devices=4
    )


def test_a_good_run(tmp_path: Path) -> None:
    said: list[str] = []
    run = train("none", tmp_path, said)
    assert run.problems == []
    document = run.as_json()
    assert document.pop("wall_s") > 0
    assert document == {
        "devices": 4,
        "platform": "cpu",
        "mesh": "data=4 model=1",
        "losses": {"5": 5.5, "10": 5.0, "15": 4.5, "20": 4.0},
        "resumed_from": 20,
        "resumed_losses": {"25": 3.5, "30": 3.0},
        "steps_per_second": pytest.approx(10.0),
        "checkpoint": str(tmp_path / "run"),
    }
    assert [re.findall(r"\d+", line)[1] for line in said] == ["5", "10", "15", "20", "25", "30"]
    # All events are where TensorBoard finds them again.
    assert list(tensorboard_events.read_scalars(tmp_path / "run" / "events", "loss")) == [
        5,
        10,
        15,
        20,
        25,
        30,
    ]


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("crash", r"training to step 20 ended with status 7; .*\n.*out of paper"),
        ("nan", r"a loss is not finite: .*nan"),
        ("flat", r"the loss did not fall: 5\.0000 at first, 5\.0000 at last"),
        ("no-checkpoint", r"no checkpoint of step 20; there are \[\]"),
        ("crash-on-resume", r"training to step 30 ended with status 7"),
        ("restart", r"reported step 5: it did not start from the checkpoint of step 20"),
        ("forgets", r"the loss jumped at the restore: 4\.0000 before, 5\.9000 after"),
        ("one-device", r"written from mesh \{'data': 1, 'model': 1\}, not from 4 devices"),
    ],
)
def test_every_fault_is_reported(tmp_path: Path, fault: str, problem: str) -> None:
    run = train(fault, tmp_path)
    assert any(re.search(problem, text, re.DOTALL) for text in run.problems), run.problems


@pytest.mark.parametrize("fault", ["crash", "crash-on-resume", "restart", "forgets"])
def test_a_failed_resume_has_no_resumed_step(tmp_path: Path, fault: str) -> None:
    assert train(fault, tmp_path).resumed_from is None


def test_too_few_losses_are_reported() -> None:
    problems = training.find_training_problems({10: 5.0, 20: 4.0}, [20], 20)
    assert problems == [
        "loss reported at steps [10, 20], which is not at least three times up to step 20"
    ]


def test_a_resumed_run_that_ends_early_is_reported() -> None:
    first = {5: 6.0, 10: 5.0, 15: 4.5, 20: 4.0}
    assert training.find_resume_problems(first, {25: 3.9}, [20, 30], 20) == [
        "after the restore, loss reported at steps [25], not up to 30"
    ]
    assert training.find_resume_problems(first, {}, [20, 30], 20) == [
        "after the restore, loss reported at steps [], not up to 30"
    ]
    assert training.find_resume_problems(first, {25: 3.9, 30: 3.8}, [20], 20) == [
        "no checkpoint of step 30; there are [20]"
    ]
