"""Find which changes of a list make a build bad, in about log2(changes) builds for each culprit.

The changes are in one list. A build with none of them is good, a build with all of them is bad.
Bisection finds the shortest beginning of the list that is bad, so its last change is needed. If
that change alone makes a build bad, it is the culprit. If not, the change needs another one that
comes before it in the list. The search then repeats with the first culprit always applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = Literal["good", "bad", "skip"]
_MAX_BUILDS_BETWEEN_SKIPS = 16  # the region between skipped builds may be wide: do not try it all


@dataclass(frozen=True)
class Boundary:
    """The last count known to be good, and the first count known to be bad.

    They are further than one apart only if every build between them was skipped.
    """

    good: int
    bad: int


@dataclass(frozen=True)
class SearchResult:
    """The changes without which a build is not bad.

    Attributes:
        groups: Positions in the list, one group for each change that is needed, the last change
            first. The positions of a group could not be told apart.
        alone: Whether a build with only these changes, and those that they require, was bad.
    """

    groups: tuple[tuple[int, ...], ...]
    alone: bool


def find_boundary(good: int, bad: int, ask: Callable[[int], Answer]) -> Boundary:
    """Find where a sequence of builds turns from good to bad, by bisection.

    If nothing is skipped, this asks at most log2(bad - good) times.

    Args:
        good: A count that is known to be good.
        bad: A larger count that is known to be bad.
        ask: Returns the answer for a count between the two.
    """
    skipped: list[int] = []
    builds_between_skips = 0
    while (candidate := _next_candidate(good, bad, skipped)) is not None:
        count, is_between_skips = candidate
        builds_between_skips += is_between_skips
        if builds_between_skips > _MAX_BUILDS_BETWEEN_SKIPS:
            break
        answer = ask(count)
        if answer == "skip":
            skipped.append(count)
            continue
        builds_between_skips = 0
        if answer == "good":
            good = count
        else:
            bad = count
    return Boundary(good, bad)


def _next_candidate(good: int, bad: int, skipped: list[int]) -> tuple[int, bool] | None:
    """Return the count to ask for next, and whether skipped counts surround it.

    The wider of the two regions outside the skipped counts comes first.

    Returns:
        None if no count is left to ask for.
    """
    skipped_inside = [count for count in skipped if good < count < bad]
    if not skipped_inside:
        return ((good + bad) // 2, False) if bad - good > 1 else None
    lowest, highest = min(skipped_inside), max(skipped_inside)
    regions = [(good, lowest), (highest, bad)]
    first, last = max(regions, key=lambda region: region[1] - region[0])
    if last - first > 1:
        return (first + last) // 2, False
    untried = [count for count in range(lowest, highest) if count not in skipped_inside]
    return (untried[len(untried) // 2], True) if untried else None


def find_needed_changes(
    change_count: int,
    ask: Callable[[frozenset[int]], Answer],
    with_prerequisites: Callable[[int], frozenset[int]],
) -> SearchResult:
    """Find the changes without which a build is not bad.

    Args:
        change_count: The length of the list. Without any of the changes a build is good, with all
            of them it is bad.
        ask: Returns the answer for a build with the changes at these positions.
        with_prerequisites: Returns a position together with the positions that it requires. For
            example, a commit requires the commits before it.
    """
    fixed: frozenset[int] = frozenset()
    groups: list[tuple[int, ...]] = []
    top = change_count
    while True:
        boundary = find_boundary(0, top, _ask_with(fixed, ask))
        group = tuple(range(boundary.good, boundary.bad))
        groups.append(group)
        # Without fixed changes, "the first change alone" is a build that the bisection has tried.
        is_known_bad = boundary.good == 0 and not fixed
        fixed = fixed.union(*(with_prerequisites(position) for position in group))
        answer = "bad" if is_known_bad else ask(fixed)
        if answer != "good":
            return SearchResult(tuple(groups), answer == "bad")
        top = boundary.good


def _ask_with(
    fixed: frozenset[int], ask: Callable[[frozenset[int]], Answer]
) -> Callable[[int], Answer]:
    """Return a function that asks for the first N changes together with the fixed ones."""
    return lambda count: ask(frozenset(range(count)) | fixed)
