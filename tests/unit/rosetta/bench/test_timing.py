from __future__ import annotations

import pytest

from rosetta.bench.timing import Timings, time_in_turns


def test_candidates_take_turns_and_the_order_is_reversed_every_other_turn() -> None:
    ran: list[str] = []
    time_in_turns({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 3)
    assert ran == ["a", "b", "b", "a", "a", "b"]


def test_what_each_took_is_by_the_clock() -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    timings = time_in_turns(
        {"a": lambda: spend(1.0), "b": lambda: spend(3.0)}, 2, clock=lambda: now[0]
    )
    assert timings == {"a": Timings((1.0, 1.0)), "b": Timings((3.0, 3.0))}


def test_the_ratio_is_the_median_of_the_pairs_not_of_the_medians() -> None:
    # A machine that is three times slower in the second and third turn is so for both.
    reference, mine = Timings((1.0, 3.0, 3.0)), Timings((2.0, 6.0, 3.0))
    assert mine.ratio(reference) == 2.0
    assert mine.median / reference.median == 1.0


def test_no_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="number of turns must be at least 1"):
        time_in_turns({}, 0)


def test_the_spread_is_the_largest_distance_from_the_median() -> None:
    assert Timings((2.0, 1.0, 2.5)).spread == 0.5
    assert Timings((2.0,)).spread == 0.0
