"""`rosetta explain`: what a preset comes to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types

if TYPE_CHECKING:
    import argparse


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("explain", parents=[common], options_anywhere=True)
    entry.add_argument(
        "preset",
        nargs="?",
        metavar="PRESET",
        help="the name of a preset, or a YAML file (docs/presets.md)",
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


def _explain(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from rosetta.core import gpu_query
    from rosetta.presets import explain, layers, user_settings

    if args.preset is None:
        found = explain.listing()
        return found, explain.list_table(found)
    settings = user_settings.with_card(
        user_settings.settings(args.settings, "explain"), os.environ, args.accelerator
    )
    accelerator = args.accelerator or (
        None
        if user_settings.on_cpu(settings, os.environ)
        else layers.find_accelerator(gpu_query.detect_gpus())
    )
    found = explain.document(
        args.preset,
        accelerator=accelerator,
        settings=settings,
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        environment=os.environ,
    )
    return found, explain.table(found)


RUN = {"explain": _explain}
