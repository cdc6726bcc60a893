from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.accept import predictions
from rosetta.accept.setup import Machine, Setup
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]


TASK: Any = SimpleNamespace(size="large", batch=32, inputs=512, targets=128)
STEP = {"family": "t5_1_1", **vars(TASK), "switches": ["fuse_mlp", "attention"]}


def _write_plan(
    folder: Path,
    *,
    gpu: str = "NVIDIA H200",
    gpus: int = 1,
    fp8: int = 10,
    step: dict[str, Any] | None = None,
) -> str:
    result = {
        "time": {"seconds": {"likely": 0.1, "fastest": 0.08, "slowest": 0.12}},
        "memory": {"peak": 1e10},
        "gemms": {"fp8": fp8, "other": 1},
        "run": {"gpu": gpu, "gpus": gpus, "step": STEP if step is None else step},
    }
    path = folder / "plan.json"
    path.write_text(json.dumps({"schema": 1, "command": "plan", "ok": True, "result": result}))
    return str(path)


def _make_setup(*plans: str) -> Setup:
    machine = Machine("NVIDIA H200", "gpu", "9.0", 1, "0.10.2", "0.10.2", "3.11.2")
    return Setup(machine, tiny=False, plans=plans, jobs=1, dumps_autotuning=True)


@pytest.mark.parametrize(
    ("seconds", "peak", "wrong"),
    [
        pytest.param(0.1, 10_000_000_000, set(), id="as-predicted"),
        pytest.param(0.119, 10_900_000_000, set(), id="at-the-end-of-the-range"),
        pytest.param(0.13, 10_000_000_000, {"slowest"}, id="too-slow"),
        pytest.param(0.07, 10_000_000_000, {"fastest"}, id="too-fast"),
        pytest.param(0.1, 12_000_000_000, {"memory"}, id="too-large"),
        pytest.param(0.1, None, {"memory"}, id="memory-not-known"),
    ],
)
def test_a_step_has_to_be_in_the_range_of_its_plan(
    tmp_path: Path, seconds: float, peak: int | None, wrong: set[str]
) -> None:
    setup = _make_setup(_write_plan(tmp_path))
    compared = predictions.compare_with_plans(
        setup, "fp8", seconds=seconds, peak=peak, fp8=True, task=TASK
    )
    failed = [check.name for check in compared.checks if not check.ok]
    assert len(compared.checks) == 3
    assert len(failed) == len(wrong)
    assert all(any(word in name for name in failed) for word in wrong)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"gpus": 8}, id="gpus"),
        pytest.param({"gpu": "NVIDIA A100-SXM4-80GB"}, id="gpu"),
        pytest.param({"step": STEP | {"size": "xl"}}, id="size"),
        pytest.param({"step": STEP | {"batch": 16}}, id="batch"),
        pytest.param({"step": STEP | {"targets": 512}}, id="lengths"),
        pytest.param({"step": STEP | {"switches": ["num_encoder_layers"]}}, id="layers"),
        pytest.param({"step": {}}, id="another-framework"),
    ],
)
def test_another_plan_is_compared_but_not_checked(tmp_path: Path, plan: dict[str, Any]) -> None:
    setup = _make_setup(_write_plan(tmp_path, **plan))
    compared = predictions.compare_with_plans(
        setup, "fp8", seconds=9.0, peak=1, fp8=True, task=TASK
    )
    assert (len(compared.numbers), compared.checks, len(compared.notes)) == (2, (), 1)


def test_a_plan_is_for_its_precision(tmp_path: Path) -> None:
    setup = _make_setup(_write_plan(tmp_path))
    compared = predictions.compare_with_plans(
        setup, "bf16", seconds=9.0, peak=1, fp8=False, task=TASK
    )
    assert not compared.numbers
    (note,) = predictions.describe_plans_without_step(setup, {False})
    assert "plan.json" in note
    assert predictions.describe_plans_without_step(setup, {False, True}) == []


def test_a_recorded_golden_is_a_plan() -> None:
    file = ROOT / "tests" / "plans" / "t5x-large-few-layers-h100.json"
    plan = predictions.read_plan(str(file))
    assert (plan.gpu, plan.gpu_count, plan.fp8) == ("NVIDIA H100 80GB HBM3", 64, True)
    assert plan.fastest < plan.seconds < plan.slowest
    assert plan.peak > 1e9
    assert plan.step["batch"] == 64 * 32
    assert "num_encoder_layers" in plan.step["switches"]


def test_what_is_not_a_plan_is_refused(tmp_path: Path) -> None:
    unfinished = json.dumps({"plan": "t5x --card", "figures": {"time": 1.0, "peak": 1.0}})
    for number, text in enumerate(
        (
            unfinished,
            "{",
            "[]",
            "{}",
            '{"plan": "t5x", "figures": null}',
            '{"plan": "", "figures": {}}',
        )
    ):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        with errors.expect_user_error(errors.INVALID, where=f"accept --plan {file}"):
            predictions.read_plan(str(file))
    with errors.expect_user_error(errors.MISSING, where="accept --plan", remedy="rosetta plan"):
        predictions.read_plan(str(tmp_path / "none"))
