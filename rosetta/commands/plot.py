"""The command `rosetta plot`: draw the curves of runs in the terminal, and as PNG."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    plot = commands.add_parser("plot", parents=[common])
    plot.add_argument(
        "runs",
        nargs="+",
        metavar="FOLDER",
        help="the folder of a run (MODEL_DIR, FT_DIR or LOG_DIR), or its progress.jsonl",
    )
    plot.add_argument(
        "--value",
        default="loss",
        metavar="NAME",
        help="what to draw: loss, learning_rate, gradient_norm, tokens_per_second, mfu, ..., or "
        "NAME/METRIC of the evaluations, as in text_to_text/accuracy (default: loss)",
    )
    plot.add_argument("--out", metavar="FILE.png", help="also write the chart to this PNG file")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta plot`; return its result and the text to print."""
    from rosetta.curves import run_curves, terminal_chart

    curves = [run_curves.read_curve(folder, args.value) for folder in args.runs]
    if args.out:
        from rosetta.curves import png_chart  # a login node may have no Pillow

        png_chart.write_chart(curves, args.value, Path(args.out))
    result = {
        "value": args.value,
        "out": args.out,
        "runs": [
            {"name": curve.name, "points": [list(point) for point in curve.points.items()]}
            for curve in curves
        ],
    }
    width = shutil.get_terminal_size().columns
    chart = terminal_chart.draw_chart(curves, args.value, width)
    return result, f"{chart}\nwritten: {args.out}" if args.out else chart


RUN = {"plot": run}
