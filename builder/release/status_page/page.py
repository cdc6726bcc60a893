"""What the page says, worked out of the reports: for each title the last green night and its
history, for each source its patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.release.counted_nouns import format_count
from builder.release.status_page import drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from builder.release.status_page.reports import Image, Line, Published, Report, Source

_SHOWN = 30  # nights in a history
_GOOD = ("ok", "left-out", "not-asked")
_AT_EASE = ("at-tip", "moved", "release", "not-asked", "ok")


@dataclass(frozen=True)
class Shown:
    """A distribution for an accelerator: `verdict` is green, red or quiet (not asked for in the
    newest night).
    """

    title: str
    distribution: str
    accelerator: str
    verdict: str
    last_green: str | None
    published: Published
    images: tuple[Image, ...]
    history: tuple[tuple[str, str], ...]

    @property
    def badge(self) -> tuple[str, str]:
        """Its words and its colour."""
        if self.verdict == "green":
            return f"green {self.last_green}", "green"
        if self.last_green:
            return f"last green {self.last_green}", "red" if self.verdict == "red" else "grey"
        return ("red", "red") if self.verdict == "red" else ("no night yet", "grey")


@dataclass(frozen=True)
class View:
    """All that the template prints."""

    newest: Report
    shown: tuple[Shown, ...]
    held: tuple[tuple[str, Source], ...]

    @property
    def unknown(self) -> list[str]:
        """The titles of which no night at hand tells anything."""
        return [
            each.title for each in self.shown if each.verdict == "quiet" and not each.last_green
        ]


def view(reports: Sequence[Report]) -> View:
    """Return what the page shows of these reports, newest first; at least one is needed."""
    newest = reports[0]
    shown = []
    for entry in newest.published:
        images = tuple(image for image in newest.images if image.title == entry.title)
        history = tuple((report.date, verdict(report, entry.title)) for report in reports[:_SHOWN])
        green = next(
            (report.date for report in reports if verdict(report, entry.title) == "green"), None
        )
        shown.append(
            Shown(
                entry.title,
                images[0].distribution,
                images[0].accelerator,
                history[0][1],
                green,
                entry,
                images,
                history[::-1],
            )
        )
    held = tuple(
        (name, source) for name, source in newest.sources.items() if source.state not in _AT_EASE
    )
    return View(newest, tuple(shown), held)


def verdict(report: Report, title: str) -> str:
    """Green, red or quiet: what a night came to for one title."""
    entry = next((each for each in report.published if each.title == title), None)
    images = [image for image in report.images if image.title == title]
    states = [state for image in images for state in (image.built.state, image.trained.state)]
    if entry is None or (entry.state == "not-asked" and set(states) <= {"not-asked"}):
        return "quiet"
    if entry.green:
        return "green"
    return (
        "red"
        if entry.state not in _GOOD or any(state not in _GOOD for state in states)
        else "quiet"
    )


def badges(shown: View) -> dict[str, str]:
    """Return the badges by file name: one a title, and one for each of its architectures."""
    found = {}
    for each in shown.shown:
        text, colour = each.badge
        found[f"{each.title}.svg"] = drawing.badge(each.title, text, colour)
        for image in each.images:
            fine = image.built.state == image.trained.state == "ok"
            left_out = image.built.state == "ok" and image.trained.state == "left-out"
            said = (
                ("built, trained", "green")
                if fine
                else ("built, not trained", "amber")
                if left_out
                else ("not asked for", "grey")
                if image.built.state == "not-asked"
                else ("red", "red")
            )
            found[f"{each.title}-{image.architecture}.svg"] = drawing.badge(
                f"{each.title} {image.architecture}", *said
            )
    return found


def html(shown: View) -> str:
    """Return the whole page."""
    # What a template gets is data of ours, and is escaped all the same; a name that it lacks is an
    # error.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "mb": _megabytes,
        "curve": _curve,
        "behind": drawing.behind,
        "end_of": _end,
        "commit_url": _commit_url,
        "patches": _patches,
        "sentence": _sentence,
    }
    return environment.get_template("page.html.j2").render(view=shown, night=shown.newest)


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.0f} MB"


def _curve(image: Image) -> Markup:
    return drawing.curve(
        image.trained.runs, f"{image.distribution} on {image.accelerator}, {image.architecture}"
    )


def _end(line: Line) -> str:
    return f"until {line.until}" if line.until else "no end set"


def _sentence(error: str) -> str:
    """Return an error as the command line prints it."""
    return error.replace(" -> ", "; ")


def _patches(number: int) -> str:
    return format_count(number, "patch", "patches")


def _commit_url(source: Source, commit: str) -> str:
    """Where a commit can be looked at; "" for what is no commit on GitHub."""
    if source.url is None or not source.url.startswith("https://github.com/"):
        return ""
    return f"{source.url.removesuffix('.git')}/commit/{commit}"
