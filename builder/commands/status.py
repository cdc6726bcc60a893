"""Make the status page and its badges of the reports of nights: static files, which any web server
can hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.command_context import Context, Result
from builder.packages import environment_assembly
from builder.release.status_page import page, reports
from rosetta.core import option_types
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from builder.release.status_page.page import View


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
        help="take the reports of earlier nights from this page, which was made before",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="build/status",
        help="the folder for the page (default: build/status)",
    )
    parser.add_argument(
        "--keep",
        type=option_types.whole_number(maximum=1000),
        default=60,
        metavar="N",
        help="the number of nights on the page (default: 60)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.earlier and context.offline:
        raise UserError("cannot be read with --offline", "--earlier", "leave one of the two out")
    folder = Path(arguments.output).absolute()
    environment_assembly.refuse_unmarked(folder, reports.FILE)
    earlier = reports.of_page(arguments.earlier) if arguments.earlier else []
    here = [Path(each).absolute() for each in arguments.reports or ["build/nightly/reports"]]
    documents = reports.newest([*earlier, *reports.of_folders(here)], arguments.keep)
    if not documents:
        raise UserError("there is no report yet", str(here[0]), "make one: python build.py nightly")
    shown = page.view([reports.of(each, each["date"]) for each in documents])
    badges = page.badges(shown)
    with (
        environment_assembly.locked(folder) as place,
        environment_assembly.exchanged(place) as fresh,
    ):
        fresh.mkdir()
        for name, text in badges.items():
            write_atomic(fresh / "badges" / name, text)
        write_atomic(
            fresh / reports.FILE, json.dumps({"schema": 1, "reports": documents}, indent=1) + "\n"
        )
        write_atomic(fresh / "index.html", page.html(shown))
    data = {
        "page": str(folder / "index.html"),
        "badges": sorted(badges),
        "nights": len(documents),
        "newest": shown.newest.date,
        "verdicts": {each.title: each.verdict for each in shown.shown},
    }
    return Result(data, _text(shown, folder, documents))


def _text(shown: View, folder: Path, documents: Sequence[object]) -> str:
    lines = [
        f"{each.title:<14}{each.verdict:<7}"
        f"{'last green ' + each.last_green if each.last_green else 'never green'}"
        for each in shown.shown
    ]
    return "\n".join(
        [
            *lines,
            (
                f"{folder / 'index.html'} shows {len(documents)} "
                f"night{'s' * (len(documents) != 1)}, the newest of {shown.newest.date}"
            ),
        ]
    )
