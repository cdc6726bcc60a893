"""The command `rosetta explain`: show every value of a preset, or describe a variable."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, UNKNOWN, UserError

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("explain", parents=[common], options_anywhere=True)
    entry.add_argument(
        "preset",
        nargs="?",
        metavar="PRESET|VARIABLE",
        help=(
            "the name of a preset, a YAML file (docs/how-to/use-presets.md), or a variable such as "
            "PACK"
        ),
    )
    entry.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help=(
            "a variable of the scripts, a flag of XLA without dashes, fdl.NAME, a field of a "
            "preset, or ROSETTA_WITH=SWITCH,..."
        ),
    )
    entry.add_argument(
        "--accelerator",
        metavar="GPU",
        help=(
            "short name, see docs/reference/gpus.md (default: the GPU of this machine or of the "
            "site; none with JAX_PLATFORMS=cpu)"
        ),
    )
    entry.add_argument(
        "--nodes", type=option_types.parse_count, metavar="N", help="nodes (default: the preset's)"
    )
    entry.add_argument(
        "--gpus-per-node",
        type=option_types.parse_count,
        metavar="N",
        help="GPUs of each node (default: the preset's)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta explain`; return its result and the text to print."""
    from rosetta.core import gpu_query
    from rosetta.core.variables import lookup, misspellings
    from rosetta.presets import explain, resolution, user_settings

    if args.preset is None:
        choices = explain.list_choices()
        return choices, explain.format_choices(choices)
    if lookup.is_known_variable(args.preset):
        return _explain_variable(args)
    _refuse_unknown(args.preset)
    settings = user_settings.override_cpu_platform(
        user_settings.parse_settings(args.settings, "explain"), os.environ, args.accelerator
    )
    accelerator = args.accelerator
    if not accelerator and not user_settings.is_cpu_requested(settings, os.environ):
        detected_gpus = gpu_query.detect_gpus({**os.environ, **settings})
        accelerator = resolution.find_accelerator(detected_gpus)
    explanation = explain.collect_explanation(
        args.preset,
        accelerator=accelerator or None,
        settings=settings,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        environment=os.environ,
    )
    misspellings.warn_of_unknown_variables(
        os.environ, "rosetta explain", "explain", explanation["framework"]
    )
    return explanation, explain.format_explanation(explanation)


def _explain_variable(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Describe the variable that is named in place of a preset.

    Raises:
      UserError: The command line has an option or a setting that only a preset can use.
    """
    from rosetta.core.variables import explanation

    options = {
        "--accelerator": args.accelerator,
        "--nodes": args.nodes,
        "--gpus-per-node": args.gpus_per_node,
    }
    words = [*args.settings, *(name for name, value in options.items() if value)]
    if words:
        raise UserError(
            f"{args.preset} is a variable, but {words[0]} works only for presets",
            "rosetta explain",
            f"leave out {words[0]}",
            kind=CONFLICT,
            value=words[0],
        )
    description = explanation.describe_variable(args.preset)
    return description, explanation.format_explanation(description)


def _refuse_unknown(name: str) -> None:
    """Refuse a name that looks like a variable, and suggest a known name.

    Other unknown names are taken for presets, which have an error of their own.
    """
    from rosetta.core.variables import lookup
    from rosetta.presets import preset_files

    presets = preset_files.load_presets()
    variables = dict.fromkeys(variable.name for variable in lookup.TABLE)
    if name in presets or preset_files.is_file_name(name):
        return
    meant = lookup.find_variable_by_argument(name.upper())
    if meant:
        suggestions = [meant.name]
    else:
        suggestions = difflib.get_close_matches(name, [*presets, *variables], 1)
        suggestions = suggestions or difflib.get_close_matches(name.upper(), variables, 1)
    is_variable = bool(suggestions) and suggestions[0] in variables
    if is_variable or re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        hint = f"did you mean {suggestions[0]}?" if suggestions else ""
        raise UserError(
            f"there is no preset or variable {name!r}",
            "rosetta explain",
            hint or "see rosetta t5x pretrain --help",
            kind=UNKNOWN,
            value=name,
        )


RUN = {"explain": run}
