"""The command `rosetta convert`: convert the weights of a model to another layout.

A layout is the set of files in which a model is published or trained. Each kind of model has a
module: `convert_llama` and `convert_t5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.commands import convert_llama, convert_t5

if TYPE_CHECKING:
    import argparse

_MODELS: dict[str, Any] = {"llama": convert_llama, "t5": convert_t5}


def add_parsers(commands: Any, common: Any) -> None:
    """Add the command's parser."""
    convert = commands.add_parser("convert", parents=[common])
    models = convert.add_subparsers(dest="model", metavar="MODEL")
    for module in _MODELS.values():
        module.add_parser(models)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert`; return its result and the text to print."""
    result: tuple[dict[str, Any], str] = _MODELS[args.model].run(args)
    return result


RUN = {"convert": run}
