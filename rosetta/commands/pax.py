"""The command `rosetta pax`: train and evaluate models of Paxml, and generate text with them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.commands import pax_eval, pax_generate
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

# The commands that have options of their own, and run in this process.
_OWN_COMMANDS: dict[str, Any] = {module.NAME: module for module in (pax_eval, pax_generate)}


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("pax", options_anywhere=True)
    subcommands = entry.add_subparsers(dest="what", metavar="COMMAND")
    for command, summary in _SUMMARIES.items():
        parser = subcommands.add_parser(
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
    for module in _OWN_COMMANDS.values():
        own = subcommands.add_parser(
            module.NAME,
            parents=[common],
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            options_anywhere=True,
        )
        module.add_arguments(own)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta pax`: Paxml replaces this process, or --dry-run shows its command lines.

    `eval` and `generate` run in this process, and return their results.
    """
    from rosetta.core import lock_record
    from rosetta.core.variables import misspellings, setting_values
    from rosetta.launch import execution, pax_trainer

    if args.what in _OWN_COMMANDS:
        outcome: tuple[dict[str, Any], str] = _OWN_COMMANDS[args.what].run(args)
        return outcome

    command = f"pax {args.what}"
    misspellings.warn_of_unknown_variables(os.environ, f"rosetta {command}", command)
    environment = dict(os.environ)
    hyper_parameters = []
    for word in args.settings:
        if word.startswith("fdl."):
            hyper_parameters.append(f"--{word}")
            continue
        name, value = setting_values.parse_setting_word(
            word,
            command,
            "write a hyper-parameter as fdl.NAME=VALUE; set variables of other programs in the "
            "environment",
        )
        environment[name] = value
    if args.profile:
        environment["PROFILE_STEPS"] = args.profile
    environment["ROSETTA_FDL"] = " ".join([environment.get("ROSETTA_FDL", ""), *hyper_parameters])
    if not environment.get("PYTHON") and find_spec("paxml") is None:
        raise UserError(
            "this environment has no paxml",
            "rosetta pax",
            "use an image or environment of the distribution pax",
            kind=MISSING,
        )
    baked_python = lock_record.get_lock_path().parent / "bin" / "python"
    if baked_python.is_file():
        # It also finds what pip put beside a read-only environment.
        environment.setdefault("PYTHON", str(baked_python))
    commands = pax_trainer.make_commands(readers.COMMAND_SCRIPTS[command], [], environment)
    if not args.dry_run:
        execution.run_in_order(commands)
    result = {"runs": [execution.convert_to_json(part) for part in commands]}
    return result, "\n".join(execution.format_command(part) for part in commands)


RUN = {"pax": run}
