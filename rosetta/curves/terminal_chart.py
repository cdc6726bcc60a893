"""Draw curves as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.curves.axis import format_tick, make_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.curves.axis import Axis
    from rosetta.curves.run_curves import Curve

_SYMBOLS = "*o+x#%@&"
_FEWEST_COLUMNS = 40


def draw_chart(curves: Sequence[Curve], value: str, width: int = 80, height: int = 18) -> str:
    """Return a chart of curves, each with another symbol.

    Args:
      curves: At least one.
      value: What they show, for the heading.
      width: The columns of the chart, with the labels.
      height: The rows of the curves.
    """
    steps = make_axis([step for curve in curves for step in curve.points])
    values = make_axis([point for curve in curves for point in curve.points.values()])
    labels = {values.place(tick, height): format_tick(tick) for tick in values.ticks}
    margin = max(len(label) for label in labels.values())
    columns = max(width, _FEWEST_COLUMNS) - margin - 2
    rows = [[" "] * columns for _ in range(height)]
    for number, curve in enumerate(curves):
        symbol = _SYMBOLS[number % len(_SYMBOLS)]
        for column, place in _trace(curve, steps, values, columns, height).items():
            rows[place][column] = symbol
    lines = [value]
    for place in reversed(range(height)):
        row = "".join(rows[place]).rstrip()
        lines.append(f"{labels.get(place, ''):>{margin}} |{row}")
    lines.append(f"{'':>{margin}} +{'-' * columns}")
    first, last = format_tick(steps.low), f"step {format_tick(steps.high)}"
    lines.append(f"{'':>{margin}}  {first}{last:>{columns - len(first)}}")
    if len(curves) > 1:
        for number, curve in enumerate(curves):
            lines.append(f"{_SYMBOLS[number % len(_SYMBOLS)]} {curve.name}")
    return "\n".join(lines)


def _trace(curve: Curve, steps: Axis, values: Axis, columns: int, height: int) -> dict[int, int]:
    """Return the row of a curve in each column, in straight lines from point to point."""
    points = [
        (steps.place(step, columns), values.place(value, height))
        for step, value in curve.points.items()
    ]
    trace = {}
    for (start, low), (end, high) in zip(points, [*points[1:], points[-1]], strict=True):
        for column in range(start, end + 1):
            share = (column - start) / (end - start) if end > start else 1.0
            trace[column] = round(low + share * (high - low))
    return trace
