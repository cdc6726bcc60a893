from __future__ import annotations

import pytest

from rosetta.bench.timing import Samples, interleaved


def test_candidates_take_turns_and_the_order_is_reversed_every_other_turn() -> None:
    ran: list[str] = []
    interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, 3)
    assert ran == ["a", "b", "b", "a", "a", "b"]


def test_what_each_took_is_by_the_clock() -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    found = interleaved({"a": lambda: spend(1.0), "b": lambda: spend(3.0)}, 2, clock=lambda: now[0])
    assert found == {"a": Samples((1.0, 1.0)), "b": Samples((3.0, 3.0))}


def test_the_ratio_is_the_median_of_the_pairs_not_of_the_medians() -> None:
    # A machine that is three times slower in the second and third turn is so for both.
    reference, mine = Samples((1.0, 3.0, 3.0)), Samples((2.0, 6.0, 3.0))
    assert mine.ratio(reference) == 2.0
    assert mine.median / reference.median == 1.0


def test_no_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        interleaved({}, 0)
