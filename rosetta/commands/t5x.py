"""The command `rosetta t5x`: train, evaluate and infer with the settings of the scripts."""

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
    subcommands = entry.add_subparsers(dest="what", metavar="COMMAND")
    for command, summary in _SUMMARIES.items():
        parser = subcommands.add_parser(
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
    """Run `rosetta t5x`: T5X replaces this process, or --dry-run shows its command line."""
    from rosetta.core import lock_record
    from rosetta.core.variables import misspellings, setting_values
    from rosetta.launch import execution, t5x_evaluation, t5x_trainer

    command = f"t5x {args.what}"
    misspellings.warn_of_unknown_variables(os.environ, f"rosetta {command}", command)
    profile = getattr(args, "profile", None)
    words = [*args.settings, f"PROFILE_STEPS={profile}"] if profile else args.settings
    environment = dict(os.environ)
    for word in words:
        name, value = setting_values.parse_setting_word(
            word, command, "set variables of other programs in the environment"
        )
        environment[name] = value
    baked_python = lock_record.get_lock_path().parent / "bin" / "python"
    if baked_python.is_file():
        # It also finds what pip put beside a read-only environment.
        environment.setdefault("PYTHON", str(baked_python))
    if command in readers.COMMAND_SCRIPTS:
        trainer = t5x_trainer.make_command(
            readers.COMMAND_SCRIPTS[command], [], environment, _find_t5x_folder()
        )
    else:
        trainer = t5x_evaluation.make_command(args.what, environment)
    if not args.dry_run:
        execution.execute(trainer)
    return execution.convert_to_json(trainer), execution.format_command(trainer)


def _find_t5x_folder() -> str:
    """Return the folder that has the package t5x.

    Raises:
      UserError: T5X is not installed.
    """
    spec = find_spec("t5x")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "this environment has no t5x",
            "rosetta t5x",
            "use an image or environment of the distribution t5x",
            kind=MISSING,
        )
    return str(Path(next(iter(spec.submodule_search_locations))).parent)


RUN = {"t5x": run}
