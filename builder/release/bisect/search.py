"""Which changes it takes: the whole list of them is halved, each in at most log2 of their number.

All that differs stands in one list. With the first of it in place, and no more, a build is good for
none and bad for all; halving finds the first count that is bad, so its last change is needed. Bad
with nothing but that change: it is the culprit. Good: another one of those before it is needed as
well, and is found in the same way with the first held in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = Literal["good", "bad", "skip"]
_PATIENCE = 16  # builds to try among those that lie between skipped ones and cannot be told apart


@dataclass(frozen=True)
class Edge:
    """`good` and `bad` are counts; they lie further than one apart only where nothing between could
    be told.
    """

    good: int
    bad: int


@dataclass(frozen=True)
class Found:
    """Places in the list, a group for each change that is needed, the last one first; more than one
    in a group could not be told apart.

    `alone` is whether the groups, and what they stand on, were seen to be bad without all the rest.
    """

    groups: tuple[tuple[int, ...], ...]
    alone: bool


def edge(good: int, bad: int, ask: Callable[[int], Answer]) -> Edge:
    """Return the first bad count above a good one, `good` and `bad` being known; asks at most
    log2(bad - good) where nothing is skipped.
    """
    skipped: list[int] = []
    inside = 0
    while (middle := _middle(good, bad, skipped)) is not None:
        place, walled = middle
        inside += walled
        if inside > _PATIENCE:
            break
        answer = ask(place)
        if answer == "skip":
            skipped.append(place)
            continue
        inside = 0
        good, bad = (place, bad) if answer == "good" else (good, place)
    return Edge(good, bad)


def _middle(good: int, bad: int, skipped: list[int]) -> tuple[int, bool] | None:
    """Return what to ask next, and whether it is walled in by skipped ones: the wider way to a
    known end goes first. None where all is asked.
    """
    between = [one for one in skipped if good < one < bad]
    if not between:
        return ((good + bad) // 2, False) if bad - good > 1 else None
    low, high = min(between), max(between)
    ways = [(good, low), (high, bad)]
    first, last = max(ways, key=lambda way: way[1] - way[0])
    if last - first > 1:
        return (first + last) // 2, False
    left = [one for one in range(low, high) if one not in between]
    return (left[len(left) // 2], True) if left else None


def needed(
    count: int, bad: Callable[[frozenset[int]], Answer], closure: Callable[[int], frozenset[int]]
) -> Found:
    """Return the changes, of `count` in a list, without which a build is not bad.

    Args:
        count: how many there are; with none of them a build is good, with all of them bad.
        bad: asks for a build with these changes.
        closure: what a change cannot be without, itself with it: a commit has those before it.
    """
    fixed: frozenset[int] = frozenset()
    groups: list[tuple[int, ...]] = []
    top = count
    while True:
        held = fixed
        found = edge(0, top, lambda first, held=held: bad(frozenset(range(first)) | held))  # type: ignore[misc]
        group = tuple(range(found.good, found.bad))
        groups.append(group)
        fixed = fixed.union(*(closure(each) for each in group))
        answer = "bad" if found.good == 0 and not held else bad(fixed)
        if answer != "good":
            return Found(tuple(groups), answer == "bad")
        top = found.good
