"""Pictures of the status page as SVG: loss curves, how far behind a pin was, badges.

Colours come from the page's style, those of a badge from here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.release.status_page.reports import Moment, Run

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 170, 40, 10, 10, 24
_DASHES = ("", "6 3", "2 3", "8 2 2 2")
# White text on these has a contrast of 4.5 at least (WCAG AA).
COLOURS = {"green": "#1a7f37", "red": "#b42318", "amber": "#8a5a00", "grey": "#57606a"}


def curve(runs: Sequence[Run], title: str) -> Markup:
    """Draw the loss curves of one image; a dotted line marks the step that was restored."""
    lines = [
        (
            run,
            [
                (int(step), loss)
                for step, loss in run.losses.items()
                if loss is not None and math.isfinite(loss)
            ],
        )
        for run in runs
    ]
    lines = [(run, points) for run, points in lines if len(points) > 1]
    if not lines:
        return Markup()
    steps, losses = (
        [step for _, points in lines for step, _ in points],
        [loss for _, points in lines for _, loss in points],
    )
    low, high = min(losses), max(losses)
    spread = (high - low) or 1.0

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (step - min(steps)) / (
            (max(steps) - min(steps)) or 1
        )

    def y(loss: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - loss) / spread

    said = "; ".join(
        f"{_devices(run)}: from {points[0][1]:.3f} to {points[-1][1]:.3f} in {points[-1][0]} steps"
        for run, points in lines
    )
    rows = [
        Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, f"Training loss of {title}. {said}."
        )
    ]
    for loss in (low, (low + high) / 2, high):
        rows.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                _LEFT, _WIDTH - _RIGHT, y(loss), y(loss)
            )
        )
        rows.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{:.2f}</text>').format(
                _LEFT - 5, y(loss) + 4, loss
            )
        )
    rows += [
        Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            x(step), _HEIGHT - 7, anchor, text
        )
        for step, anchor, text in _ticks(steps)
    ]
    for step in sorted(
        {
            run.resumed_from
            for run, _ in lines
            if run.resumed_from is not None and min(steps) <= run.resumed_from <= max(steps)
        }
    ):
        rows.append(
            Markup('<line class="restored" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
                x(step), _TOP, _HEIGHT - _BOTTOM
            )
        )
    for number, (_, points) in enumerate(lines):
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
        rows.append(
            Markup('<polyline class="run run{}" stroke-dasharray="{}" points="{}"/>').format(
                number % 4, _DASHES[number % 4], path
            )
        )
    return Markup("\n").join([*rows, Markup("</svg>")])


def _devices(run: Run) -> str:
    return f"{run.devices} device{'s' * (run.devices != 1)}"


def _ticks(steps: Sequence[int]) -> list[tuple[int, str, str]]:
    return [(min(steps), "start", f"step {min(steps)}"), (max(steps), "end", f"step {max(steps)}")]


def behind(moments: Sequence[Moment], title: str) -> Markup:
    """How many commits the pin of a source was behind, at each of our commits that changed it or
    its patches; empty where that never changed.
    """
    known = [moment.behind.commits for moment in moments if moment.behind]
    if len(set(known)) < 2:
        return Markup()
    width, height, most = 120, 24, max(known)
    points = " ".join(
        f"{2 + (width - 4) * number / (len(known) - 1):.1f},"
        f"{2 + (height - 4) * (1 - value / most):.1f}"
        for number, value in enumerate(known)
    )
    said = f"Commits {title} was behind over time: {', '.join(map(str, known))}."
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><polyline '
        'class="run run0" points="{}"/></svg>'
    ).format(width, height, said, points)


def badge(label: str, text: str, colour: str) -> str:
    """Draw a badge as a file of its own: `label` on grey, `text` on one of COLOURS."""
    left, right = (12 + round(6.6 * len(each)) for each in (label, text))
    values: Mapping[str, object] = {
        "width": left + right,
        "left": left,
        "right": right,
        "label": label,
        "text": text,
        "colour": COLOURS[colour],
        "grey": "#3d444d",
        "middle": left / 2,
        "other": left + right / 2,
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
        '<text x="{middle}" y="14" textLength="{label_length}">{label}</text><text '
        'x="{other}" y="14" textLength="{text_length}">{text}</text></g></svg>\n'
    ).format(**{name: escape(value) for name, value in values.items()})
