from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="NOT CHECKED: needs the packages of a baked environment")

from rosetta.bench import device_timing, timing
from rosetta.bench.timing import Timings


def test_a_turn_calls_the_program_and_counts_its_computations() -> None:
    ran: list[int] = []

    def count(sets: Any) -> Any:
        ran.append(len(sets))
        return compiled(sets)

    function = device_timing.DeviceFunction(
        lambda x: x + 1, [(jax.numpy.ones(3),), (jax.numpy.zeros(3),)], turn_seconds=0.0
    )
    assert (function.calls, function.computations) == (1, 2)
    function.calls, compiled = 3, function.compiled
    function.compiled = count
    function()
    assert ran == [2, 2, 2]
    assert function.computations == 6


def test_a_short_function_is_called_until_the_turn_is_long_enough() -> None:
    function = device_timing.DeviceFunction(
        lambda x: x + 1, [(jax.numpy.ones(3),)], turn_seconds=1000.0
    )
    assert function.calls == device_timing._MOST_CALLS


def test_times_are_those_of_one_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    function = device_timing.DeviceFunction(
        lambda x: x + 1, [(jax.numpy.ones(3),)] * 2, turn_seconds=0.0
    )
    function.calls = 5
    monkeypatch.setattr(timing, "time_in_turns", lambda *_: {"a": Timings((20.0, 30.0))})
    assert device_timing.time_functions({"a": function}, 2) == {"a": Timings((2.0, 3.0))}
