"""Draw the pictures of the status page as SVG: loss curves, distances to upstream, badges.

The colours of curves come from the style of the page. The colours of badges are defined here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.release.status_page.reports import PastState, Run

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 170, 40, 10, 10, 24
_SPARK_WIDTH, _SPARK_HEIGHT, _SPARK_MARGIN = 120, 24, 2
_DASHES = ("", "6 3", "2 3", "8 2 2 2")
# White text on these has a contrast of 4.5 at least (WCAG AA).
COLOURS = {"green": "#1a7f37", "red": "#b42318", "amber": "#8a5a00", "grey": "#57606a"}


@dataclass(frozen=True)
class _Curve:
    """The losses of one run as points: the step and the loss in nats per token."""

    run: Run
    points: list[tuple[int, float]]


class _Axes:
    """Maps steps and losses to positions in the picture."""

    def __init__(self, curves: Sequence[_Curve]) -> None:
        steps = [step for curve in curves for step, _ in curve.points]
        losses = [loss for curve in curves for _, loss in curve.points]
        self.first_step, self.last_step = min(steps), max(steps)
        self.lowest, self.highest = min(losses), max(losses)

    def x(self, step: float) -> float:
        """Return the horizontal position of a step."""
        span = (self.last_step - self.first_step) or 1
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - self.first_step) / span

    def y(self, loss: float) -> float:
        """Return the vertical position of a loss."""
        span = (self.highest - self.lowest) or 1.0
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (self.highest - loss) / span


def draw_loss_curves(runs: Sequence[Run], title: str) -> Markup:
    """Draw the losses of the training runs of one image.

    A dotted line marks the step at which a run was restored. The picture is empty if no run has two
    losses.
    """
    curves = [curve for curve in map(_make_curve, runs) if len(curve.points) > 1]
    if not curves:
        return Markup()
    axes = _Axes(curves)
    descriptions = "; ".join(_describe_curve(curve) for curve in curves)
    opening = Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        _WIDTH, _HEIGHT, f"Training loss of {title}. {descriptions}."
    )
    elements = [
        opening,
        *_draw_axes(axes),
        *_draw_restored_steps(curves, axes),
        *_draw_lines(curves, axes),
        Markup("</svg>"),
    ]
    return Markup("\n").join(elements)


def _make_curve(run: Run) -> _Curve:
    points = [
        (int(step), loss)
        for step, loss in run.losses.items()
        if loss is not None and math.isfinite(loss)
    ]
    return _Curve(run, points)


def _describe_curve(curve: _Curve) -> str:
    """Return a curve in words, for readers who do not see it."""
    devices = f"{curve.run.devices} device{'s' * (curve.run.devices != 1)}"
    (_, first_loss), (last_step, last_loss) = curve.points[0], curve.points[-1]
    return f"{devices}: from {first_loss:.3f} to {last_loss:.3f} in {last_step} steps"


def _draw_axes(axes: _Axes) -> list[Markup]:
    """Draw three horizontal lines with their losses, and the first and the last step."""
    elements = []
    for loss in (axes.lowest, (axes.lowest + axes.highest) / 2, axes.highest):
        line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
        label = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{:.2f}</text>')
        y = axes.y(loss)
        elements.append(line.format(_LEFT, _WIDTH - _RIGHT, y, y))
        elements.append(label.format(_LEFT - 5, y + 4, loss))
    for step, anchor in ((axes.first_step, "start"), (axes.last_step, "end")):
        label = Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
        elements.append(label.format(axes.x(step), _HEIGHT - 7, anchor, f"step {step}"))
    return elements


def _draw_restored_steps(curves: Sequence[_Curve], axes: _Axes) -> list[Markup]:
    line = Markup('<line class="restored" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>')
    steps = {curve.run.resumed_from for curve in curves}
    visible_steps = sorted(
        step for step in steps if step is not None and axes.first_step <= step <= axes.last_step
    )
    return [line.format(axes.x(step), _TOP, _HEIGHT - _BOTTOM) for step in visible_steps]


def _draw_lines(curves: Sequence[_Curve], axes: _Axes) -> list[Markup]:
    line = Markup('<polyline class="run run{}" stroke-dasharray="{}" points="{}"/>')
    elements = []
    for number, curve in enumerate(curves):
        style = number % len(_DASHES)
        points = " ".join(f"{axes.x(step):.1f},{axes.y(loss):.1f}" for step, loss in curve.points)
        elements.append(line.format(style, _DASHES[style], points))
    return elements


def draw_distance(states: Sequence[PastState], name: str) -> Markup:
    """Draw how many commits the pin of a source was behind its branch over time.

    The picture is empty if the distance never changed.

    Args:
        states: The past states of the source, oldest first.
        name: The name of the source.
    """
    distances = [state.behind.commits for state in states if state.behind]
    if len(set(distances)) < 2:
        return Markup()
    width = _SPARK_WIDTH - 2 * _SPARK_MARGIN
    height = _SPARK_HEIGHT - 2 * _SPARK_MARGIN
    points = []
    for number, distance in enumerate(distances):
        x = _SPARK_MARGIN + width * number / (len(distances) - 1)
        y = _SPARK_MARGIN + height * (1 - distance / max(distances))
        points.append(f"{x:.1f},{y:.1f}")
    label = f"Commits {name} was behind over time: {', '.join(map(str, distances))}."
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><polyline '
        'class="run run0" points="{}"/></svg>'
    ).format(_SPARK_WIDTH, _SPARK_HEIGHT, label, " ".join(points))


def draw_badge(label: str, text: str, colour: str) -> str:
    """Return a badge as an SVG file.

    Args:
        label: The left part, on grey.
        text: The right part.
        colour: The name of the colour of the right part, one of COLOURS.
    """
    left, right = _badge_width(label), _badge_width(text)
    values: Mapping[str, object] = {
        "width": left + right,
        "left": left,
        "right": right,
        "label": label,
        "text": text,
        "colour": COLOURS[colour],
        "grey": "#3d444d",
        "label_middle": left / 2,
        "text_middle": left + right / 2,
        "label_length": left - 12,
        "text_length": right - 12,
    }
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        '<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath>'
        '<g clip-path="url(#r)"><rect width="{left}" height="20" fill="{grey}"/><rect '
        'x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        'font-size="11">'
        '<text x="{label_middle}" y="14" textLength="{label_length}">{label}</text><text '
        'x="{text_middle}" y="14" textLength="{text_length}">{text}</text></g></svg>\n'
    ).format(**{name: escape(value) for name, value in values.items()})


def _badge_width(text: str) -> int:
    """Return the width of a part of a badge, in pixels."""
    return 12 + round(6.6 * len(text))
