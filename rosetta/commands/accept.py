"""The command `rosetta accept`: what only a GPU can tell, in one run of ten minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import acceptance, gpu_query, log, option_types
from rosetta.core.errors import MISSING, UserError
from rosetta.core.value_parsing import parse_list

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the top parser's subcommands."""
    accept = commands.add_parser("accept", parents=[common])
    names = ", ".join([*acceptance.GROUPS, *(row.name for row in acceptance.ROWS)])
    accept.add_argument(
        "--only",
        metavar="ROW,...",
        help=f"the rows to measure, separated by commas: {names} (default: all)",
    )
    accept.add_argument(
        "--folder",
        type=Path,
        default=Path(acceptance.DEFAULT_FOLDER),
        metavar="DIR",
        help=(
            f"the folder of the results, {acceptance.RESULT_FILE} and logs; a call in a folder "
            f"with results goes on with them (default: {acceptance.DEFAULT_FOLDER})"
        ),
    )
    accept.add_argument(
        "--minutes",
        type=option_types.parse_positive_number,
        default=acceptance.DEFAULT_MINUTES,
        metavar="N",
        help=f"the time for all rows (default: {acceptance.DEFAULT_MINUTES})",
    )
    accept.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="FILE",
        help=(
            "compare steps with this output of `rosetta plan --json`, or with a golden of "
            "tests/plans (may be repeated)"
        ),
    )
    accept.add_argument(
        "--again", action="store_true", help="measure rows again that have a result"
    )
    accept.add_argument(
        "--tiny", action="store_true", help="use tiny shapes, also on a CPU, to try the command"
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta accept`; return its result and the text to print."""
    from rosetta.accept import report, runner

    rows = acceptance.select_rows(parse_list("--only", args.only or ""), "accept --only")
    has_gpu = gpu_query.detect_gpus(os.environ) or gpu_query.has_gpu_device_file()
    if not os.environ.get("JAX_PLATFORMS") and not has_gpu:
        # JAX with CUDA prints tracebacks when it finds no GPU.
        if not args.tiny:
            raise UserError(
                "no NVIDIA GPU is visible",
                "accept",
                "run the command on a machine with a GPU; --tiny runs on a CPU",
                kind=MISSING,
            )
        os.environ["JAX_PLATFORMS"] = "cpu"
    options = runner.Options(
        args.folder, rows, 60 * args.minutes, args.tiny, args.again, tuple(args.plan)
    )
    document = runner.run_acceptance(options, log.info)
    path = args.folder.resolve() / acceptance.RESULT_FILE
    return document, report.format_results(document, str(path))


RUN = {"accept": run}
