"""Draw where the predicted time of a step goes, as a PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
    from pathlib import Path

# In pixels: the picture, its margin, a row, and the room for names and for figures.
WIDTH, MARGIN, ROW, NAMES, FIGURES = 1000, 24, 30, 220, 190
BAR, RANGE, INK, PAPER = "#3b6ea5", "#c8cdd3", "#1f2328", "#ffffff"
LARGE, SMALL = 16, 13
_LEFT = MARGIN + NAMES


class _Rows:
    """A picture that is filled row by row.

    Args:
        count: The number of rows.
    """

    def __init__(self, count: int) -> None:
        self.image = Image.new("RGB", (WIDTH, 2 * MARGIN + ROW * count), PAPER)
        self._draw = ImageDraw.Draw(self.image)
        self._top = MARGIN

    def add_text(self, text: str, size: int = SMALL) -> None:
        """Add a row of text."""
        self._write(MARGIN, text, size)
        self._top += ROW

    def add_bar(self, name: str, begin: float, end: float, colour: str, figure: str) -> None:
        """Add a row with a bar.

        Args:
            name: The text before the bar.
            begin: Where the bar begins, as a share of the room for bars.
            end: Where it ends.
            colour: The colour of the bar.
            figure: The text after the bar.
        """
        self._write(MARGIN, name)
        self._fill(begin, end, colour)
        self._write(self._locate(end) + 8, figure)
        self._top += ROW

    def mark(self, position: float, colour: str) -> None:
        """Mark a position, a share of the room for bars, in the last row."""
        self._top -= ROW
        self._fill(position, position, colour)
        self._top += ROW

    def _write(self, left: int, text: str, size: int = SMALL) -> None:
        self._draw.text((left, self._top + 6), text, INK, ImageFont.load_default(size))

    def _fill(self, begin: float, end: float, colour: str) -> None:
        corners = self._locate(begin), self._top + 4, self._locate(end) + 2, self._top + ROW - 6
        self._draw.rectangle(corners, fill=colour)

    @staticmethod
    def _locate(share: float) -> int:
        """Return the pixel of a share of the room for bars."""
        return _LEFT + round((WIDTH - 2 * MARGIN - NAMES - FIGURES) * share)


def draw_chart(report: dict[str, Any], path: Path) -> None:
    """Write a chart of a plan: a bar for each kind of kernel, and the range of the whole step.

    Args:
        report: The result of `rosetta plan`, with `run` and `time`.
        path: The file to write, a PNG.
    """
    time, run = report["time"], report["run"]
    parts, seconds = time["parts"], time["seconds"]
    likely, fastest, slowest = (seconds[name] for name in ("likely", "fastest", "slowest"))
    rows = _Rows(len(parts) + 4)
    rows.add_text(f"{run['what']}, on {run['gpus']} x {run['gpu']}", LARGE)
    verdict = "fits" if run["fits"] else "does not fit"
    rows.add_text(
        f"{verdict}; predicted {likely * 1e3:,.1f} ms a step, {time['autotuning']}. "
        "Nothing was measured."
    )
    longest = max(parts.values())
    for kind, part in parts.items():
        figure = f"{part * 1e3:,.1f} ms, {part / likely:.1%}"
        rows.add_bar(kind, 0.0, part / longest, BAR, figure)
    rows.add_text("")
    figure = f"{fastest * 1e3:,.1f} to {slowest * 1e3:,.1f} ms"
    rows.add_bar("a step", fastest / slowest, 1.0, RANGE, figure)
    rows.mark(likely / slowest, BAR)
    rows.image.save(path, format="PNG")
