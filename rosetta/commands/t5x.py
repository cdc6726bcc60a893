"""`rosetta t5x`: training, evaluation and inference by the settings of the scripts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables import readers

if TYPE_CHECKING:
    import argparse


_SUMMARIES = {
    readers.T5X_PRETRAIN: "pretrain a T5 model on text",
    readers.T5X_FINETUNE: "finetune a T5 model on MNLI, SQuAD or data of your own",
    readers.T5X_EVAL: "measure how well a T5 checkpoint answers",
    readers.T5X_INFER: "write the answers of a T5 checkpoint to files",
}


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("t5x", options_anywhere=True)
    below = entry.add_subparsers(dest="what", metavar="COMMAND")
    for command, summary in _SUMMARIES.items():
        parser = below.add_parser(
            command.removeprefix("t5x "),
            parents=[common],
            help=summary,
            description=option_types.SETTINGS_HELP,
            options_anywhere=True,
        )
        option_types.add_run_arguments(
            parser,
            "a variable of the groups below, such as T5_SIZE=small or DATA=text:FILES",
            traced=command in readers.T5X_TRAINING,
        )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become the trainer; with --dry-run, say what it would be."""
    from rosetta.core import lock_record
    from rosetta.core.variables import misspellings, setting_values
    from rosetta.launch import execution, t5x_evaluation, t5x_trainer

    command, profile = f"t5x {args.what}", getattr(args, "profile", None)
    misspellings.warn_of_unknown_variables(os.environ, f"rosetta {command}", command)
    given = (
        setting_values.parse_setting_word(
            word, command, "what is for other programs goes into the environment"
        )
        for word in [*args.settings, *([f"PROFILE_STEPS={profile}"] if profile else [])]
    )
    environment = {**os.environ, **dict(given)}
    door = lock_record.get_lock_path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault(
            "PYTHON", str(door)
        )  # it also finds what pip put beside a read-only environment
    wanted = (
        t5x_trainer.make_command(
            readers.COMMAND_SCRIPTS[command], [], environment, _find_t5x_folder()
        )
        if command in readers.COMMAND_SCRIPTS
        else t5x_evaluation.make_command(args.what, environment)
    )
    if not args.dry_run:
        execution.execute(wanted)
    return execution.convert_to_json(wanted), execution.format_command(wanted)


def _find_t5x_folder() -> str:
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


RUN = {"t5x": run}
