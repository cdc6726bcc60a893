"""Extrapolate the figures of steps with few layers to the whole depth of a model.

Time, bytes and memory of a step are linear in the number of layers, since all layers are equal:
each adds the same kernels and keeps the same arrays. Figures that are not linear are marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How far a figure between the depths may be from the line, as a share of it.
TOLERANCE = 0.05
PART_PREFIX = "part: "  # before the name of a part of the time


@dataclass(frozen=True)
class Extrapolated:
    """The figures at the whole depth.

    Attributes:
        figures: Name -> value.
        problem: Why the figures are not linear in the layers; "" if nothing speaks against it.
    """

    figures: Mapping[str, float]
    problem: str = ""


def extrapolate(points: Sequence[tuple[int, Mapping[str, float]]], layers: int) -> Extrapolated:
    """Return the figures of a step with more layers.

    Two points give a line. More points check it.

    Args:
        points: (layers, figures) of each compiled step, at least two with different layers. A
            figure that a step does not have is 0.
        layers: The layers of the whole model.
    """
    ordered = sorted(points, key=lambda point: point[0])
    (fewest, low), (most, high) = ordered[0], ordered[-1]
    names = dict.fromkeys(name for _, figures in ordered for name in figures)
    values, problems = dict[str, float](), list[str]()
    for name in names:
        first, last = low.get(name, 0.0), high.get(name, 0.0)
        slope = (last - first) / (most - fewest)
        values[name] = last + slope * (layers - most)
        if name.startswith(PART_PREFIX):
            # Small parts of the time may shrink; their sum is checked as a whole.
            values[name] = max(values[name], 0.0)
            continue
        if slope < 0:
            problems.append(f"{name} falls from {first:.4g} to {last:.4g} with more layers")
        for depth, figures in ordered[1:-1]:
            line = first + slope * (depth - fewest)
            value = figures.get(name, 0.0)
            if abs(value - line) > TOLERANCE * max(abs(line), abs(value)):
                problems.append(f"{name} is {value:.4g} at {depth} layers, not {line:.4g}")
    return Extrapolated(values, "; ".join(problems))
