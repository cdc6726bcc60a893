"""Draw curves into a PNG file. Pillow, which images and environments have, draws the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from rosetta.core import atomic_files
from rosetta.curves.axis import format_tick, make_axis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rosetta.curves.axis import Axis
    from rosetta.curves.run_curves import Curve

_WIDTH, _HEIGHT = 1200, 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 40, 60, 70
_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#444444")
_TEXT, _GRID, _PAPER = "#222222", "#dddddd", "#ffffff"


def write_chart(curves: Sequence[Curve], value: str, file: Path) -> None:
    """Write a chart of curves, each in another colour.

    Args:
      curves: At least one.
      value: What they show, for the heading.
      file: The PNG file; one that exists is replaced.
    """
    picture = Image.new("RGB", (_WIDTH, _HEIGHT), _PAPER)
    canvas = ImageDraw.Draw(picture)
    canvas.font = ImageFont.load_default(20)
    steps = make_axis([step for curve in curves for step in curve.points])
    values = make_axis([point for curve in curves for point in curve.points.values()])
    _draw_axes(canvas, steps, values)
    canvas.text((_LEFT, 20), value, fill=_TEXT)
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        line = [_place(steps, values, step, point) for step, point in curve.points.items()]
        canvas.line(line, fill=colour, width=3, joint="curve")
        if len(line) == 1:
            canvas.circle(line[0], 5, fill=colour)
        if len(curves) > 1:
            height = _TOP + 10 + 28 * number
            canvas.line([(_WIDTH - 330, height + 11), (_WIDTH - 290, height + 11)], colour, 3)
            canvas.text((_WIDTH - 280, height), curve.name[:24], fill=_TEXT)
    with atomic_files.replace_file(file) as temporary:
        picture.save(temporary, "PNG")


def _draw_axes(canvas: Any, steps: Axis, values: Axis) -> None:
    """Draw a line and a label for each tick of both axes."""
    for tick in values.ticks:
        (_, y) = _place(steps, values, steps.low, tick)
        canvas.line([(_LEFT, y), (_WIDTH - _RIGHT, y)], fill=_GRID, width=1)
        canvas.text((_LEFT - 12, y), format_tick(tick), fill=_TEXT, anchor="rm")
    for tick in steps.ticks:
        (x, _) = _place(steps, values, tick, values.low)
        canvas.text((x, _HEIGHT - _BOTTOM + 20), format_tick(tick), fill=_TEXT, anchor="mm")
    canvas.text((_WIDTH - _RIGHT, _HEIGHT - 18), "step", fill=_TEXT, anchor="rm")


def _place(steps: Axis, values: Axis, step: float, value: float) -> tuple[int, int]:
    """Return the pixel of a value at a step."""
    x = _LEFT + steps.place(step, _WIDTH - _LEFT - _RIGHT)
    y = _HEIGHT - _BOTTOM - values.place(value, _HEIGHT - _TOP - _BOTTOM)
    return x, y
