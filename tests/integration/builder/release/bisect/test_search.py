from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest

from builder.release.bisect.search import (
    Answer,
    Boundary,
    SearchResult,
    find_boundary,
    find_needed_changes,
)


class Builds:
    """A build is bad with all of `together`; what is in `skipped` cannot be told."""

    def __init__(self, together: Iterable[int], skipped: Iterable[int] = ()) -> None:
        self.together, self.skipped, self.builds = (
            frozenset(together),
            set(skipped),
            set[frozenset[int]](),
        )

    def __call__(self, chosen: frozenset[int]) -> Answer:
        self.builds.add(chosen)
        return (
            "skip" if len(chosen) in self.skipped else "bad" if self.together <= chosen else "good"
        )

    def search(self, count: int) -> SearchResult:
        return find_needed_changes(count, self, lambda index: frozenset({index}))

    def cost(self, count: int) -> int:
        return len(self.builds - {frozenset(), frozenset(range(count))})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 33, 64, 100])
def test_one_change_in_log2_and_two(count: int) -> None:
    for index in range(count):
        builds = Builds([index])
        assert builds.search(count) == SearchResult(((index,),), alone=True)
        assert builds.cost(count) <= math.log2(count) + 2


@pytest.mark.parametrize("count", [2, 3, 8, 9, 31])
def test_every_pair_in_twice_log2_and_four(count: int) -> None:
    for pair in itertools.combinations(range(count), 2):
        builds = Builds(pair)
        assert builds.search(count) == SearchResult(((pair[1],), (pair[0],)), alone=True)
        assert builds.cost(count) <= 2 * math.log2(count) + 4


def test_three_together() -> None:
    assert Builds([2, 11, 17]).search(20) == SearchResult(((17,), (11,), (2,)), alone=True)


def test_a_commit_comes_with_those_before_it() -> None:
    builds = Builds([6])
    result = find_needed_changes(
        10,
        builds,
        lambda index: frozenset(range(5, index + 1)) if index >= 5 else frozenset({index}),
    )
    assert result == SearchResult(((6,),), alone=True)
    assert frozenset({5, 6}) in builds.builds


def test_skipped_ones_are_gone_around() -> None:
    result = find_boundary(
        0, 40, lambda place: "skip" if 15 <= place <= 25 else "bad" if place >= 30 else "good"
    )
    assert result == Boundary(29, 30)


def test_what_lies_among_skipped_ones_is_not_told_apart() -> None:
    asked: list[int] = []

    def ask(place: int) -> Answer:
        asked.append(place)
        return "skip" if 10 <= place <= 12 else "bad" if place >= 11 else "good"

    assert find_boundary(0, 40, ask) == Boundary(9, 13)
    assert len(asked) == len(set(asked)) <= 10


def test_it_gives_up_among_many_that_cannot_be_told() -> None:
    asked: list[int] = []

    def ask(place: int) -> Answer:
        asked.append(place)
        return "skip"

    assert find_boundary(0, 1000, ask) == Boundary(0, 1000)
    assert len(asked) < 50


def test_a_group_that_cannot_be_tried_alone_says_so() -> None:
    def ask(chosen: frozenset[int]) -> Answer:
        return "skip" if chosen == {5} else "bad" if 5 in chosen else "good"

    assert find_needed_changes(10, ask, lambda index: frozenset({index})) == SearchResult(
        ((5,),), alone=False
    )
