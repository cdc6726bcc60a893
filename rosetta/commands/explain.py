"""`rosetta explain`: what a preset comes to, and what a variable means."""

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
        found = explain.list_choices()
        return found, explain.format_choices(found)
    if lookup.is_known_variable(args.preset):
        return _explain_variable(args)
    _refuse_unknown(args.preset)
    settings = user_settings.override_cpu_platform(
        user_settings.parse_settings(args.settings, "explain"), os.environ, args.accelerator
    )
    accelerator = args.accelerator or (
        None
        if user_settings.is_cpu_requested(settings, os.environ)
        else resolution.find_accelerator(gpu_query.detect_gpus({**os.environ, **settings}))
    )
    found = explain.collect_explanation(
        args.preset,
        accelerator=accelerator,
        settings=settings,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        environment=os.environ,
    )
    misspellings.warn_of_unknown_variables(
        os.environ, "rosetta explain", "explain", found["framework"]
    )
    return found, explain.format_explanation(found)


def _explain_variable(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what the table says of a variable."""
    from rosetta.core.variables import explanation

    given = {
        "--accelerator": args.accelerator,
        "--nodes": args.nodes,
        "--gpus-per-node": args.gpus_per_node,
    }
    words = [*args.settings, *(name for name, value in given.items() if value)]
    if words:
        raise UserError(
            f"{args.preset} is a variable, and {words[0]} is for presets",
            "rosetta explain",
            f"leave out {words[0]}",
            kind=CONFLICT,
            value=words[0],
        )
    found = explanation.describe_variable(args.preset)
    return found, explanation.format_explanation(found)


def _refuse_unknown(name: str) -> None:
    """Refuse a name that is nearer to a variable's than to a preset's."""
    from rosetta.core.variables import lookup
    from rosetta.presets import preset_files

    presets = preset_files.load_presets()
    variables = dict.fromkeys(variable.name for variable in lookup.TABLE)
    if name in presets or preset_files.is_file_name(name):
        return
    meant = lookup.find_variable_by_argument(name.upper())
    near = [meant.name] if meant else difflib.get_close_matches(name, [*presets, *variables], 1)
    near = near or difflib.get_close_matches(name.upper(), variables, 1)
    is_variable = bool(near) and near[0] in variables
    if is_variable or re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise UserError(
            f"there is no preset or variable {name!r}",
            "rosetta explain",
            f"did you mean {near[0]}?" if near else "see rosetta t5x pretrain --help",
            kind=UNKNOWN,
            value=name,
        )


RUN = {"explain": run}
