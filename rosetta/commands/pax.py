"""`rosetta pax`: training and evaluation by the settings of the scripts."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import MISSING, UserError
from rosetta.core.variables import readers

if TYPE_CHECKING:
    import argparse


_SUMMARIES = {
    readers.PAX_PILE: "pretrain GPT 126M on the Pile or text of your own",
    readers.PAX_LAMBADA: "evaluate a pretrained GPT 126M on LAMBADA",
    readers.PAX_TRAIN: "train the experiment that CONFIG names",
    readers.PAX_BOOLQ: "finetune LLaMA-2 on BoolQ, and evaluate it",
}


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("pax", options_anywhere=True)
    below = entry.add_subparsers(dest="what", metavar="COMMAND")
    for command, summary in _SUMMARIES.items():
        parser = below.add_parser(
            command.removeprefix("pax "),
            parents=[common],
            help=summary,
            description=option_types.SETTINGS_HELP,
            options_anywhere=True,
        )
        option_types.add_run_arguments(
            parser,
            "a variable of the groups below, such as DATA=text:FILES, or a hyper-parameter of the "
            "experiment: fdl.NAME=VALUE",
        )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Become Paxml; with --dry-run, say what it would be."""
    from rosetta.core import lock_record
    from rosetta.core.variables import misspellings, setting_values
    from rosetta.launch import execution, pax_trainer

    command = f"pax {args.what}"
    misspellings.warn_of_unknown_variables(os.environ, f"rosetta {command}", command)
    hyper = [word for word in args.settings if word.startswith("fdl.")]
    given = (
        setting_values.parse_setting_word(
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
    door = lock_record.get_lock_path().parent / "bin" / "python"
    if door.is_file():
        environment.setdefault(
            "PYTHON", str(door)
        )  # it also finds what pip put beside a read-only environment
    wanted = pax_trainer.make_commands(readers.COMMAND_SCRIPTS[command], [], environment)
    if not args.dry_run:
        execution.run_in_order(wanted)
    return {"runs": [execution.convert_to_json(each) for each in wanted]}, "\n".join(
        map(execution.format_command, wanted)
    )


RUN = {"pax": run}
