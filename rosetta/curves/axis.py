"""The axes of a chart: round labels, and places between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
      low: The value at its start.
      high: The value at its end.
      ticks: The values that get a label.
    """

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, length: int) -> int:
        """Return the place of a value on an axis of so many places, from 0 to length - 1."""
        return round((value - self.low) / (self.high - self.low) * (length - 1))


def make_axis(values: Iterable[float], labels: int = 5) -> Axis:
    """Return an axis that holds all values, with about so many round labels."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    if low == high:  # a single value stands in the middle
        low, high = low - abs(low or 1.0) / 2, high + abs(high or 1.0) / 2
    rough = (high - low) / labels
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(number * step, 12) for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def format_tick(value: float) -> str:
    """Return the label of a value: "1,200", "0.05", "1e-05"."""
    is_whole = value == round(value) and abs(value) < 1e9
    return f"{value:,.0f}" if is_whole else f"{value:g}"
