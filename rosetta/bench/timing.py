"""Time several candidates so that their times can be compared.

The candidates take turns, and a comparison uses the ratio of two candidates within the same turn.
A machine whose speed changes between turns then hardly changes the result.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Timings:
    """The seconds of one candidate in each turn, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The largest distance of a turn from the median, as a share of the median."""
        median = self.median
        return max(abs(seconds - median) for seconds in self.seconds) / median

    def ratio(self, reference: Timings) -> float:
        """Return the median, over all turns, of these seconds divided by the reference's."""
        pairs = zip(self.seconds, reference.seconds, strict=True)
        return statistics.median(seconds / baseline for seconds, baseline in pairs)


def time_in_turns(
    candidates: Mapping[str, Callable[[], object]],
    turns: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timings]:
    """Run every candidate once in each turn, and return the times of each.

    Every other turn goes through the candidates in reverse.

    Args:
        candidates: What to run, by name. A candidate must be warmed up, and must return only when
            its work is done; a candidate that uses a GPU has to wait for it.
        turns: The number of turns.
        clock: Returns the time in seconds.

    Raises:
        ValueError: `turns` is less than 1.
    """
    if turns < 1:
        raise ValueError(f"the number of turns must be at least 1, not {turns}")
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            start = clock()
            candidates[name]()
            seconds[name].append(clock() - start)
    return {name: Timings(tuple(values)) for name, values in seconds.items()}
