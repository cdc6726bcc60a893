"""The stand-ins against what they stand for."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from rosetta.standins import editdistance


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("flaw", "lawn", 2),
        ("same", "same", 0),
    ],
)
def test_known_distances(a: str, b: str, distance: int) -> None:
    assert editdistance.eval(a, b) == distance
    assert editdistance.distance(list(a), tuple(b)) == distance


def test_equals_the_definition_on_all_short_words() -> None:
    @cache
    def defined(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(
            defined(a[1:], b) + 1, defined(a, b[1:]) + 1, defined(a[1:], b[1:]) + (a[0] != b[0])
        )

    words = [
        "".join(letters)
        for length in range(5)
        for letters in itertools.product("ab", repeat=length)
    ]
    assert all(editdistance.eval(a, b) == defined(a, b) for a in words for b in words)
