"""The commands `rosetta info` and `rosetta te`: show what this environment contains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    about = commands.add_parser("info", parents=[common])
    about.add_argument(
        "--licences",
        "--licenses",
        action="store_true",
        help="show the licence of everything in the environment",
    )
    commands.add_parser("te", parents=[common])


def run_info(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta info`; return its result and the text to print."""
    from rosetta.core import environment_info

    if args.licences:
        rows = environment_info.read_licences()
        return {"licences": rows}, environment_info.format_licences(rows)
    result = environment_info.describe_environment()
    return result, environment_info.format_environment(result)


def run_te(_: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta te`; return its result and the text to print."""
    from rosetta.core import transformer_engine

    version = transformer_engine.require_transformer_engine()
    return {"version": version}, version


RUN = {"info": run_info, "te": run_te}
