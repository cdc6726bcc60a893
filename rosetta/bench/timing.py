"""Timings that can be compared: the candidates take turns, and what counts is the ratio to the
reference within each turn.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Timings:
    """Seconds that one candidate took, one for each turn, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, reference: Timings) -> float:
        """Return the median over turns of these seconds by the reference's in the same turn."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.seconds, reference.seconds, strict=True)
        )


def time_in_turns(
    candidates: Mapping[str, Callable[[], object]],
    turns: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timings]:
    """Run every candidate once a turn, in an order that is reversed every other turn, and return
    what each took.

    A candidate returns when its work is done: one that runs on a device has to wait for it. Warm up
    before.
    """
    if turns < 1:
        raise ValueError("at least one turn")
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    order: Sequence[str] = list(candidates)
    for turn in range(turns):
        for name in order if turn % 2 == 0 else order[::-1]:
            begin = clock()
            candidates[name]()
            taken[name].append(clock() - begin)
    return {name: Timings(tuple(seconds)) for name, seconds in taken.items()}
