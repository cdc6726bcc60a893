"""Make the status page from the reports of nightly runs."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from builder.release.counted_nouns import format_count
from builder.release.status_page import drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from builder.release.status_page.reports import Image, Line, Publication, Report, Source

_MAX_NIGHTS = 30  # in the history of a title
_GOOD_STATES = ("ok", "left-out", "not-asked")
_MOVED_STATES = ("at-tip", "moved", "release", "not-asked", "ok")  # of sources


@dataclass(frozen=True)
class TitleStatus:
    """The status of a distribution for an accelerator.

    Attributes:
        title: The distribution and the accelerator.
        distribution: The distribution.
        accelerator: The accelerator.
        verdict: "green", "red", or "quiet" if the newest run did not try it.
        last_green: The day of the last green run, if there was one.
        publication: What the newest run published.
        images: The images of the newest run.
        history: The day and the verdict of each run, oldest first.
    """

    title: str
    distribution: str
    accelerator: str
    verdict: str
    last_green: str | None
    publication: Publication
    images: tuple[Image, ...]
    history: tuple[tuple[str, str], ...]

    @property
    def badge(self) -> tuple[str, str]:
        """The text and the colour of the badge."""
        if self.verdict == "green":
            return f"green {self.last_green}", "green"
        colour = "red" if self.verdict == "red" else "grey"
        if self.last_green:
            return f"last green {self.last_green}", colour
        return ("red" if self.verdict == "red" else "no night yet"), colour


@dataclass(frozen=True)
class LineStatus:
    """The status of a line.

    Attributes:
        name: The name of the line.
        line: The line, as the newest report has it.
        distributions: The distributions of the line.
        first_green: The day of the first run in which every distribution of the line was green
            with the JAX that the line has now, or None if there was none.
        days: The days from the release of that JAX to `first_green`, or to the newest run if
            `first_green` is None. None if the day of the release is not known.
    """

    name: str
    line: Line
    distributions: tuple[str, ...]
    first_green: str | None
    days: int | None

    @property
    def jax(self) -> str:
        """The JAX of the line, and how long after its release the line was green."""
        if self.line.jax is None:
            return "none"
        if self.days is None:
            return f"{self.line.jax.version}; the day of its release is not known"
        release = f"{self.line.jax.version} of {self.line.jax.released}"
        days = format_count(self.days, "day")
        if self.first_green:
            return f"{release}: first green night on {self.first_green}, {days} later"
        return f"{release}: no green night so far, {days} later"


@dataclass(frozen=True)
class PageContent:
    """Everything that the template prints.

    Attributes:
        newest: The newest report.
        titles: The status of each distribution for each accelerator.
        lines: The status of each line.
        held_sources: The sources whose pins did not move to the tip, with their names.
    """

    newest: Report
    titles: tuple[TitleStatus, ...]
    lines: tuple[LineStatus, ...]
    held_sources: tuple[tuple[str, Source], ...]

    @property
    def untried_titles(self) -> list[str]:
        """The titles that no report says anything about."""
        return [
            status.title
            for status in self.titles
            if status.verdict == "quiet" and not status.last_green
        ]


def make_content(reports: Sequence[Report]) -> PageContent:
    """Return what the page shows.

    Args:
        reports: The reports, newest first. At least one is needed.
    """
    newest = reports[0]
    held_sources = [
        (name, source)
        for name, source in newest.sources.items()
        if source.state not in _MOVED_STATES
    ]
    titles = [_make_status(reports, publication) for publication in newest.published]
    lines = [_make_line_status(reports, name) for name in newest.lines]
    return PageContent(newest, tuple(titles), tuple(lines), tuple(held_sources))


def select_reports(reports: Sequence[Report], count: int) -> list[Report]:
    """Return the newest reports, and the older ones that show when a line was first green.

    Args:
        reports: The reports, newest first.
        count: How many of the newest reports are kept in any case.
    """
    lines = reports[0].lines if reports else ()
    first_green_days = {find_first_green(reports, name) for name in lines}
    return [
        report
        for index, report in enumerate(reports)
        if index < count or report.date in first_green_days
    ]


def find_first_green(reports: Sequence[Report], line: str) -> str | None:
    """Return the day of the first run in which every distribution of a line was green.

    Only runs with the JAX that the line has in the newest report count.

    Args:
        reports: The reports, newest first.
        line: The name of the line.
    """
    jax = reports[0].lines[line].jax
    if jax is None:
        return None
    green_days = [report.date for report in reports if _is_line_green(report, line, jax.version)]
    return min(green_days, default=None)


def _is_line_green(report: Report, line: str, version: str) -> bool:
    """Return whether a report has the line with this JAX, and every title of the line is green."""
    entry = report.lines.get(line)
    if entry is None or entry.jax is None or entry.jax.version != version:
        return False
    verdicts = {judge_title(report, title) for title in report.list_titles(line)}
    return verdicts == {"green"}


def _make_line_status(reports: Sequence[Report], name: str) -> LineStatus:
    newest = reports[0]
    line = newest.lines[name]
    distributions = tuple(
        distribution for distribution, entry in newest.distributions.items() if entry.line == name
    )
    first_green = find_first_green(reports, name)
    days = None
    if line.jax and line.jax.released:
        until = dt.date.fromisoformat(first_green or newest.date)
        days = (until - dt.date.fromisoformat(line.jax.released)).days
    return LineStatus(name, line, distributions, first_green, days)


def _make_status(reports: Sequence[Report], publication: Publication) -> TitleStatus:
    title = publication.title
    verdicts = [(report.date, judge_title(report, title)) for report in reports]
    green_dates = [date for date, verdict in verdicts if verdict == "green"]
    images = tuple(image for image in reports[0].images if image.title == title)
    return TitleStatus(
        title,
        images[0].distribution,
        images[0].accelerator,
        verdicts[0][1],
        green_dates[0] if green_dates else None,
        publication,
        images,
        tuple(reversed(verdicts[:_MAX_NIGHTS])),
    )


def judge_title(report: Report, title: str) -> str:
    """Return the verdict of a report about a distribution and accelerator.

    Returns:
        "green", "red", or "quiet" if the run did not try it.
    """
    publication = next((entry for entry in report.published if entry.title == title), None)
    states = {
        state.state
        for image in report.images
        if image.title == title
        for state in (image.built, image.trained)
    }
    if publication is None:
        return "quiet"
    if publication.state == "not-asked" and states <= {"not-asked"}:
        return "quiet"
    if publication.green:
        return "green"
    is_good = all(state in _GOOD_STATES for state in (publication.state, *states))
    return "quiet" if is_good else "red"


def draw_badges(content: PageContent) -> dict[str, str]:
    """Return the badges by file name: one for each title, and one for each of its architectures."""
    badges = {}
    for status in content.titles:
        badges[f"{status.title}.svg"] = drawing.draw_badge(status.title, *status.badge)
        for image in status.images:
            label = f"{status.title} {image.architecture}"
            badges[f"{status.title}-{image.architecture}.svg"] = drawing.draw_badge(
                label, *_describe_image(image)
            )
    return badges


def _describe_image(image: Image) -> tuple[str, str]:
    """Return the text and the colour of the badge of an image."""
    if image.built.state == image.trained.state == "ok":
        return "built, trained", "green"
    if image.built.state == "ok" and image.trained.state == "left-out":
        return "built, not trained", "amber"
    if image.built.state == "not-asked":
        return "not asked for", "grey"
    return "red", "red"


def render_page(content: PageContent) -> str:
    """Return the page as HTML."""
    # The reports are our own data, and are escaped all the same. A name that the template does not
    # know is an error.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "megabytes": _format_megabytes,
        "loss_curves": _draw_loss_curves,
        "distance": drawing.draw_distance,
        "window": _format_window,
        "commit_url": _find_commit_url,
        "patch_count": _format_patch_count,
        "sentence": _format_error,
    }
    template = environment.get_template("page.html.j2")
    return template.render(content=content, night=content.newest)


def _format_megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:,.0f} MB"


def _draw_loss_curves(image: Image) -> Markup:
    title = f"{image.distribution} on {image.accelerator}, {image.architecture}"
    return drawing.draw_loss_curves(image.trained.runs, title)


def _format_window(line: Line) -> str:
    return f"until {line.until}" if line.until else "no end date"


def _format_error(error: str) -> str:
    """Return an error as the command line prints it. Older reports have an arrow in it."""
    return error.replace(" -> ", "; ")


def _format_patch_count(number: int) -> str:
    return format_count(number, "patch", "patches")


def _find_commit_url(source: Source, commit: str) -> str:
    """Return the address of a commit on GitHub, or "" if the source is not there."""
    if source.url is None or not source.url.startswith("https://github.com/"):
        return ""
    return f"{source.url.removesuffix('.git')}/commit/{commit}"
