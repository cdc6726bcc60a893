"""`rosetta t5x`: training, evaluation and inference by the settings of the scripts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables import readers

if TYPE_CHECKING:
    import argparse


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("t5x", parents=[common], options_anywhere=True)
    entry.add_argument(
        "what", choices=tuple(name.removeprefix("t5x ") for name in readers.T5X), help="what to run"
    )
    entry.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help=(
            "a variable of the scripts (docs/t5x.md), such as T5_SIZE=small or DATA=text:FILES; "
            "other variables come from the environment"
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


def _t5x(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become the trainer; with --dry-run, say what it would be."""
    from rosetta.core import lock_record
    from rosetta.core.variables import reading
    from rosetta.launch import execution, t5x_evaluation, t5x_trainer

    command = f"t5x {args.what}"
    given = (
        reading.parse_setting_word(
            word, command, "what is for other programs goes into the environment"
        )
        for word in [*args.settings, *([f"PROFILE_STEPS={args.profile}"] if args.profile else [])]
    )
    environment = {**os.environ, **dict(given)}
    door = lock_record.path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault(
            "PYTHON", str(door)
        )  # it also finds what pip put beside a read-only environment
    wanted = (
        t5x_trainer.command(readers.COMMAND_SCRIPTS[command], [], environment, _tree())
        if command in readers.COMMAND_SCRIPTS
        else t5x_evaluation.command(args.what, environment)
    )
    if not args.dry_run:
        execution.execute(wanted)
    return execution.shown(wanted), execution.text(wanted)


def _tree() -> str:
    """Return the folder that the package t5x lies in."""
    found = find_spec("t5x")
    if found is None or not found.submodule_search_locations:
        raise UserError(
            "this environment has no t5x",
            "rosetta t5x",
            "use an image or environment of the distribution t5x",
            kind=MISSING,
        )
    return str(Path(next(iter(found.submodule_search_locations))).parent)


RUN = {"t5x": _t5x}
