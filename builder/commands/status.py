"""The command `status`: make the status page and its badges from the reports of nightly runs.

The page is static files, which any web server can serve.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.command_context import Context, Result
from builder.packages import environment_assembly
from builder.release.counted_nouns import format_count
from builder.release.status_page import page, reports
from rosetta.core import option_types
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from builder.release.status_page.page import PageContent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--reports",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder with reports (may be repeated; default: build/nightly/reports)",
    )
    parser.add_argument(
        "--earlier",
        metavar="URL",
        default="",
        help="also take the reports of earlier nights from this published status page",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="build/status",
        help="the folder for the page (default: build/status)",
    )
    parser.add_argument(
        "--keep",
        type=option_types.make_whole_number_type(maximum=1000),
        default=60,
        metavar="N",
        help="the number of nights on the page (default: 60)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.earlier and context.offline:
        raise UserError("cannot be read with --offline", "--earlier", "leave one of the two out")
    output = Path(arguments.output).absolute()
    environment_assembly.refuse_unmarked(output, reports.FILE)
    earlier = reports.read_earlier_page(arguments.earlier) if arguments.earlier else []
    folders = [Path(name).absolute() for name in arguments.reports or ["build/nightly/reports"]]
    documents = reports.sort_newest_first([*earlier, *reports.read_folders(folders)])
    if not documents:
        raise UserError(
            "there is no report yet", str(folders[0]), "make one: python build.py nightly"
        )
    parsed = [reports.parse_report(document, document["date"]) for document in documents]
    selected = page.select_reports(parsed, arguments.keep)
    days = {report.date for report in selected}
    documents = [document for document in documents if document["date"] in days]
    content = page.make_content(selected)
    badges = page.draw_badges(content)
    _write_page(output, documents, content, badges)
    data = {
        "page": str(output / "index.html"),
        "badges": sorted(badges),
        "nights": len(documents),
        "newest": content.newest.date,
        "verdicts": {status.title: status.verdict for status in content.titles},
        "lines": {
            status.name: {"first_green": status.first_green, "days": status.days}
            for status in content.lines
        },
    }
    return Result(data, _format_summary(content, output, len(documents)))


def _write_page(
    output: Path, documents: Sequence[Any], content: PageContent, badges: Mapping[str, str]
) -> None:
    """Write the page, its badges and its data to a folder, which is replaced as a whole."""
    with (
        environment_assembly.lock_output(output) as locked_output,
        environment_assembly.replace_path(locked_output) as folder,
    ):
        folder.mkdir()
        for name, badge in badges.items():
            write_atomic(folder / "badges" / name, badge)
        data = json.dumps({"schema": 1, "reports": documents}, indent=1) + "\n"
        write_atomic(folder / reports.FILE, data)
        write_atomic(folder / "index.html", page.render_page(content))


def _format_summary(content: PageContent, output: Path, night_count: int) -> str:
    """Return for people the verdict on each title, the JAX of each line, and the page's path."""
    lines = []
    width = max((len(status.title) for status in content.titles), default=0) + 2
    for status in content.titles:
        last_green = f"last green {status.last_green}" if status.last_green else "never green"
        lines.append(f"{status.title:<{width}}{status.verdict:<7}{last_green}")
    lines += [f"line {status.name}: JAX {status.jax}" for status in content.lines]
    lines.append(
        f"{output / 'index.html'} shows {format_count(night_count, 'night')}, the newest of "
        + content.newest.date
    )
    return "\n".join(lines)
