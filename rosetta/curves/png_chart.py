"""Draw curves or points into a PNG file.

Pillow, which images and environments have, draws the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from rosetta.core import atomic_files
from rosetta.curves.axis import format_tick, make_axis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rosetta.curves.axis import Axis
    from rosetta.curves.run_curves import Curve

_WIDTH, _HEIGHT = 1200, 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 40, 60, 70
_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#444444")
_TEXT, _GRID, _PAPER = "#222222", "#dddddd", "#ffffff"


@dataclass(frozen=True)
class Points:
    """A group of points.

    Attributes:
      name: What they are.
      points: (x, y) of each.
      joined: Whether a line joins them.
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = False


def write_scatter(
    groups: Sequence[Points], title: str, labels: tuple[str, str], limit: float, file: Path
) -> None:
    """Write a chart of points, each group in another colour, with a vertical line at a limit.

    Args:
      groups: The groups, with at least one point together.
      title: The heading.
      labels: What x and y are.
      limit: The x of the line.
      file: The PNG file; one that exists is replaced.
    """
    picture, canvas = _start_picture(title)
    points = [point for group in groups for point in group.points]
    x_axis = make_axis([limit, *(x for x, _ in points)])
    y_axis = make_axis([y for _, y in points])
    _draw_axes(canvas, x_axis, y_axis, f"across: {labels[0]}")
    canvas.text((12, _HEIGHT - 18), f"upwards: {labels[1]}", fill=_TEXT, anchor="lm")
    ends = [_place(x_axis, y_axis, limit, y) for y in (y_axis.low, y_axis.high)]
    canvas.line(ends, fill=_TEXT, width=2)
    for number, group in enumerate(groups):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [_place(x_axis, y_axis, x, y) for x, y in group.points]
        if group.joined:
            canvas.line(places, fill=colour, width=3)
        for place in places:
            canvas.circle(place, 6, fill=colour)
    _draw_legend(canvas, [group.name for group in groups])
    _save(picture, file)


def write_chart(curves: Sequence[Curve], value: str, file: Path) -> None:
    """Write a chart of curves, each in another colour.

    Args:
      curves: At least one.
      value: What they show, for the heading.
      file: The PNG file; one that exists is replaced.
    """
    picture, canvas = _start_picture(value)
    steps = make_axis([step for curve in curves for step in curve.points])
    values = make_axis([point for curve in curves for point in curve.points.values()])
    _draw_axes(canvas, steps, values, "step")
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        line = [_place(steps, values, step, point) for step, point in curve.points.items()]
        canvas.line(line, fill=colour, width=3, joint="curve")
        if len(line) == 1:
            canvas.circle(line[0], 5, fill=colour)
    if len(curves) > 1:
        _draw_legend(canvas, [curve.name for curve in curves])
    _save(picture, file)


def _start_picture(title: str) -> tuple[Any, Any]:
    """Return an empty picture with a heading, and its canvas."""
    picture = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    canvas: Any = ImageDraw.Draw(picture)
    canvas.font = ImageFont.load_default(20)
    canvas.text((_LEFT, 20), title, fill=_TEXT)
    return picture, canvas


def _save(picture: Any, file: Path) -> None:
    """Write the whole picture or nothing."""
    with atomic_files.replace_file(file) as temporary:
        picture.save(temporary, "PNG")


def _draw_legend(canvas: Any, names: Iterable[str]) -> None:
    """Draw the name and the colour of each curve or group."""
    for number, name in enumerate(names):
        height = _TOP + 10 + 28 * number
        colour = _COLOURS[number % len(_COLOURS)]
        canvas.line([(_WIDTH - 330, height + 11), (_WIDTH - 290, height + 11)], colour, 3)
        canvas.text((_WIDTH - 280, height), name[:24], fill=_TEXT)


def _draw_axes(canvas: Any, steps: Axis, values: Axis, label: str) -> None:
    """Draw a line and a label for each tick of both axes."""
    for tick in values.ticks:
        (_, y) = _place(steps, values, steps.low, tick)
        canvas.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], fill=_GRID, width=1)
        canvas.text((_LEFT - 12, y), format_tick(tick), fill=_TEXT, anchor="rm")
    for tick in steps.ticks:
        (x, _) = _place(steps, values, tick, values.low)
        canvas.text((x, _HEIGHT - _BOTTOM + 20), format_tick(tick), fill=_TEXT, anchor="mm")
    canvas.text((_WIDTH - _RIGHT, _HEIGHT - 18), label, fill=_TEXT, anchor="rm")


def _place(steps: Axis, values: Axis, step: float, value: float) -> tuple[int, int]:
    """Return the pixel of a value at a step."""
    x = _LEFT + steps.place(step, _WIDTH - _LEFT - _RIGHT)
    y = _HEIGHT - _BOTTOM - values.place(value, _HEIGHT - _TOP - _BOTTOM)
    return x, y
