"""The figures of a plan that are recorded, and how far they moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOLERANCE = 0.01  # the share of a recorded figure by which it may move
# The figures that every plan has. A plan also has `KIND-bytes` and `KIND-calls` of each kind of
# collective in its step, such as `all-reduce-bytes`.
PEAK, LAUNCHES, BYTES, FP8_SHARE, TIME = "peak", "launches", "bytes", "fp8-share", "time"
COMMON_FIGURES = (PEAK, LAUNCHES, BYTES, FP8_SHARE, TIME)
_UNITS = {PEAK: (1e9, "GB"), BYTES: (1e9, "GB"), FP8_SHARE: (0.01, "%"), TIME: (1e-3, "ms")}


def read_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a plan of one step and GPU, by name.

    Args:
        report: The result of `rosetta plan --json`.
    """
    flops = report["flops_by_role"].values()
    in_fp8 = sum(role["fp8"] for role in flops)
    in_all = in_fp8 + sum(role["other"] for role in flops)
    figures = {
        PEAK: report["memory"]["peak"],
        LAUNCHES: report["kernels"],
        BYTES: round(report["bytes"]),
        FP8_SHARE: round(in_fp8 / in_all, 6) if in_all else 0,
        TIME: round(report["time"]["seconds"]["likely"], 9),
    }
    for entry in sorted(report["collectives"], key=lambda collective: collective["kind"]):
        for name, field in (("calls", "times"), ("bytes", "bytes")):
            figure = f"{entry['kind']}-{name}"
            figures[figure] = figures.get(figure, 0) + round(entry[field])
    return figures


@dataclass(frozen=True)
class Move:
    """A figure that is not what was recorded.

    Attributes:
        figure: The name of the figure.
        old: What was recorded; 0 if the step did not have it.
        new: What it is now; 0 if the step does not have it any more.
    """

    figure: str
    old: float
    new: float

    @property
    def change(self) -> float:
        """The change as a share of the recorded figure."""
        return self.new / self.old - 1 if self.old else math.inf

    @property
    def exceeds_tolerance(self) -> bool:
        """Whether the figure moved so far that the plan has to be recorded again."""
        return abs(self.new - self.old) > TOLERANCE * abs(self.old)

    def as_json(self) -> dict[str, Any]:
        """Return the move for --json. `change` is None for a figure that was 0."""
        change = self.change if self.old else None
        return {"figure": self.figure, "old": self.old, "new": self.new, "change": change}


def list_moves(old: Mapping[str, float], new: Mapping[str, float]) -> list[Move]:
    """Return the figures that differ, in the order of the recorded ones, new figures last."""
    names = dict.fromkeys([*old, *new])
    moves = [Move(name, old.get(name, 0), new.get(name, 0)) for name in names]
    return [move for move in moves if move.old != move.new]


def format_moves(moves: Iterable[Move]) -> list[str]:
    """Return a table of figures: old, new, and the change in percent."""
    rows = [("figure", "recorded", "now", "change")]
    rows += [format_move(move) for move in moves]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  "
        f"{row[3]:>{widths[3]}}"
        for row in rows
    ]


def format_move(move: Move) -> tuple[str, str, str, str]:
    """Return the cells of a table: the figure, old, new, and the change in percent."""
    change = f"{move.change:+.2%}" if move.old else "new"
    return (
        move.figure,
        format_figure(move.figure, move.old),
        format_figure(move.figure, move.new),
        change,
    )


def format_figure(name: str, value: float) -> str:
    """Return a figure with its unit."""
    divisor, unit = _UNITS.get(name, (1, ""))
    if name.endswith("-bytes"):
        divisor, unit = _UNITS[BYTES]
    if not unit:
        return f"{value:,}"
    return f"{value / divisor:,.3f} {unit}"
