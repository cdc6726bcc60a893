"""Draw the loss of runs as an SVG file, from the progress.jsonl that each run writes.

    python3 bench/loss_curve.py /tmp/model --output loss.svg

A run is the folder that has its progress.jsonl, or that file. Several runs become several lines.
Only the standard library is needed. The colours follow the reader's light or dark mode.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 32, 64, 48
STYLE = """
svg { font: 14px system-ui, sans-serif }
.paper { fill: #ffffff; stroke: #d0d7de }
text { fill: #24292f }
.grid { stroke: #d8dee4 }
.mark { stroke: #57606a; stroke-dasharray: 3 4 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
.run0 { stroke: #0969da } .run1 { stroke: #bc4c00 } .run2 { stroke: #1a7f37 }
.dot0 { fill: #0969da } .dot1 { fill: #bc4c00 } .dot2 { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #161b22; stroke: #30363d }
  text { fill: #e6edf3 }
  .grid { stroke: #30363d }
  .mark { stroke: #8b949e }
  .run0 { stroke: #58a6ff } .run1 { stroke: #f0883e } .run2 { stroke: #3fb950 }
  .dot0 { fill: #58a6ff } .dot1 { fill: #f0883e } .dot2 { fill: #3fb950 }
}
"""
COLOURS = 3


class Run(NamedTuple):
    """The losses of a run, by step."""

    name: str
    losses: dict[int, float]


class Axis(NamedTuple):
    """The range of an axis, and the values that it labels."""

    low: float
    high: float
    ticks: list[float]

    def share(self, value: float) -> float:
        """Return where a value is on the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def read_run(path: Path) -> Run:
    """Read a run.

    Raises:
      ValueError: The file does not report a loss for two steps.
      OSError: The file cannot be read.
    """
    file = path / "progress.jsonl" if path.is_dir() else path
    losses = dict[int, float]()
    for line in file.read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        if not isinstance(report, dict):
            raise ValueError("has a line that is not a report of a run")  # noqa: TRY004 - the file is bad
        loss = report.get("loss")
        if isinstance(loss, (int, float)) and math.isfinite(loss):
            losses[int(report["step"])] = float(loss)
    if len(losses) < 2:
        raise ValueError("has no loss of two steps")
    return Run(file.absolute().parent.name, dict(sorted(losses.items())))


def make_axis(values: list[float]) -> Axis:
    """Return an axis with about five round labels, which has room for all values."""
    low, high = min(values), max(values)
    rough = (high - low or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(number * step, 10) for number in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)


def draw(runs: list[Run], title: str, marks: list[int]) -> str:
    """Return the SVG of the runs.

    Args:
      runs: At least one.
      title: The heading.
      marks: Steps that get a dotted line, for example those at which a run was resumed.
    """
    steps = make_axis([float(step) for run in runs for step in run.losses])
    losses = make_axis([loss for run in runs for loss in run.losses.values()])

    def x(step: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * steps.share(step):.1f}"

    def y(loss: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * losses.share(loss):.1f}"

    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{html.escape(title)}. {html.escape(describe(runs))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>',
        f'<text x="{LEFT - 40}" y="26" font-weight="600">{html.escape(title)}</text>',
        f'<text x="{LEFT - 40}" y="46">loss, in nats per token</text>',
    ]
    for tick in losses.ticks:
        rows.append(f'<path class="grid" d="M{LEFT} {y(tick)}H{WIDTH - RIGHT}"/>')
        label = f"{tick:g}"
        rows.append(f'<text x="{LEFT - 8}" y="{y(tick)}" dy="5" text-anchor="end">{label}</text>')
    for tick in steps.ticks:
        label = f"{tick:,.0f}"
        rows.append(
            f'<text x="{x(tick)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{label}</text>'
        )
    rows.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">step</text>')
    rows += [f'<path class="mark" d="M{x(mark)} {TOP}V{HEIGHT - BOTTOM}"/>' for mark in marks]
    for number, run in enumerate(runs):
        colour = number % COLOURS
        path = "L".join(f"{x(step)} {y(loss)}" for step, loss in run.losses.items())
        rows.append(f'<path class="line run{colour}" d="M{path}"/>')
        rows += [
            f'<circle class="dot{colour}" cx="{x(step)}" cy="{y(loss)}" r="3"/>'
            for step, loss in run.losses.items()
        ]
    if len(runs) > 1:
        rows += _legend(runs)
    return "\n".join([*rows, "</svg>\n"])


def _legend(runs: list[Run]) -> list[str]:
    rows = []
    for number, run in enumerate(runs):
        height = TOP + 14 + 20 * number
        start, end = WIDTH - RIGHT - 180, WIDTH - RIGHT - 150
        colour = number % COLOURS
        rows.append(f'<path class="line run{colour}" d="M{start} {height}H{end}"/>')
        rows.append(f'<text x="{end + 8}" y="{height + 5}">{html.escape(run.name)}</text>')
    return rows


def describe(runs: list[Run]) -> str:
    """Return what the picture shows, for readers who cannot see it."""
    parts = []
    for run in runs:
        first, *_, last = run.losses
        fell = f"from {run.losses[first]:.2f} at step {first} to {run.losses[last]:.2f}"
        parts.append(f"{run.name}: {fell} at step {last}.")
    return " ".join(parts)


def main() -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw the loss of runs as an SVG file.")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a folder with progress.jsonl"
    )
    parser.add_argument("--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--title", default="Training loss", help="the heading of the picture")
    parser.add_argument(
        "--mark", type=int, action="append", default=[], metavar="STEP", help="a dotted line here"
    )
    options = parser.parse_args()
    runs = []
    for path in options.runs:
        try:
            runs.append(read_run(path))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            parser.exit(2, f"loss_curve.py: {path}: {reason}\n")
    try:
        options.output.write_text(draw(runs, options.title, options.mark), encoding="utf-8")
    except OSError as error:
        parser.exit(2, f"loss_curve.py: {options.output}: cannot be written ({error.strerror})\n")
    print(f"{options.output}: {describe(runs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
