"""The table of a trace; the trace itself is JAX's and taken in tests/upstream/test_health.py."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.health import profiling


def _op(name: str, microseconds: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": 1,
        "tid": 2,
        "ts": 0,
        "dur": microseconds,
        "name": name,
        "args": {"hlo_op": name, "hlo_module": "jit_step"},
    }


def test_the_longest_come_first_and_ten_are_told() -> None:
    events = [_op(f"fusion.{number}", 1000.0 * number) for number in range(1, 13)] * 2
    events += [{"ph": "X", "dur": 1e9, "name": "python"}, {"ph": "M", "name": "process_name"}]
    head, first, *others = profiling.format_top_operations(events)
    assert head.split() == ["ms", "share", "calls", "operation"]
    assert first.split() == ["24.00", "15.4%", "2", "fusion.12", "(jit_step)"]
    assert len(others) == 9


def test_a_trace_of_nothing_says_so() -> None:
    assert profiling.format_top_operations([{"ph": "X", "dur": 5, "name": "python"}]) == [
        "profile: the trace has no operation of XLA's"
    ]


def test_it_is_due_at_its_first_step_and_after_its_last(tmp_path: Any) -> None:
    profiler = profiling.StepProfiler(str(tmp_path), (20, 25), 0)
    assert [step for step in range(40) if profiler.is_due(step)] == [20, 21, 22, 23, 24]
    profiler._is_running = True
    assert next(step for step in range(40) if profiler.is_due(step)) == 25
    assert not profiling.StepProfiler(str(tmp_path), None, 0).is_due(20)


def test_one_that_cannot_be_taken_is_said_and_the_run_goes_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    (tmp_path / "profile").write_text("no folder")
    profiler = profiling.StepProfiler(str(tmp_path), (20, 25), 0)
    profiler.toggle()
    assert capsys.readouterr().err.startswith(
        "rosetta: there is no profile of these steps: FileExistsError"
    )
    assert not any(profiler.is_due(step) for step in range(40))
