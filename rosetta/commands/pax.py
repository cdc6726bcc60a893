"""`rosetta pax`: training and evaluation by the settings of the scripts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables import readers

if TYPE_CHECKING:
    import argparse


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("pax", parents=[common], options_anywhere=True)
    entry.add_argument(
        "what", choices=tuple(name.removeprefix("pax ") for name in readers.PAX), help="what to run"
    )
    entry.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help=(
            "a variable of the scripts (docs/pax-scripts.md), such as CONFIG=Synthetic126M or "
            "DATA=text:FILES, or a hyper-parameter, fdl.NAME=VALUE; other variables come from the "
            "environment"
        ),
    )
    entry.add_argument(
        "--profile",
        metavar="A:B",
        help="trace the steps from A to B - 1, as PROFILE_STEPS=A:B does (docs/health.md)",
    )
    entry.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and print what would run, but run nothing",
    )


def _pax(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become Paxml; with --dry-run, say what it would be."""
    from rosetta.core import lock_record
    from rosetta.core.variables import reading
    from rosetta.launch import execution, pax_trainer

    command = f"pax {args.what}"
    hyper = [word for word in args.settings if word.startswith("fdl.")]
    given = (
        reading.parse_setting_word(
            word,
            command,
            "any hyper-parameter: fdl.NAME=VALUE; what is for other programs: the environment",
        )
        for word in args.settings
        if word not in hyper
    )
    environment = {
        **os.environ,
        **dict(given),
        **({"PROFILE_STEPS": args.profile} if args.profile else {}),
    }
    environment["ROSETTA_FDL"] = " ".join(
        [environment.get("ROSETTA_FDL", ""), *(f"--{word}" for word in hyper)]
    )
    if not environment.get("PYTHON") and find_spec("paxml") is None:
        raise UserError(
            "this environment has no paxml",
            "rosetta pax",
            "use an image or environment of the distribution pax",
            kind=MISSING,
        )
    door = lock_record.path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault(
            "PYTHON", str(door)
        )  # it also finds what pip put beside a read-only environment
    wanted = pax_trainer.commands(readers.COMMAND_SCRIPTS[command], [], environment)
    if not args.dry_run:
        execution.one_after_the_other(wanted)
    return {"runs": [execution.shown(each) for each in wanted]}, "\n".join(
        map(execution.text, wanted)
    )


RUN = {"pax": _pax}
