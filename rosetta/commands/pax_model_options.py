"""The options of commands that read a checkpoint of Pax, and what they stand for."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    import argparse

CHECKPOINT_HELP = (
    "the folder of a run or of a conversion, of which the newest checkpoint is read, or one "
    "checkpoint_N"
)
_DEFAULT_BATCH = 8


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the checkpoint belongs to."""
    parser.add_argument(
        "--vocab",
        metavar="NAME",
        help="the vocabulary (default: VOCAB_PATH, VOCAB, or what the run recorded)",
    )
    parser.add_argument(
        "--no-bos", action="store_true", help="do not begin each prompt as texts begin in training"
    )
    parser.add_argument(
        "--config",
        metavar="EXPERIMENT",
        help="the experiment of the model (default: what the run recorded)",
    )
    parser.add_argument(
        "--fdl",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a hyper-parameter of the model; may be given again",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        help="the type of activations (default: that of the run)",
    )
    parser.add_argument(
        "--batch",
        type=option_types.parse_count,
        default=_DEFAULT_BATCH,
        help=f"prompts that are answered at the same time (default: {_DEFAULT_BATCH})",
    )


def open_experiment(args: argparse.Namespace, command: str) -> tuple[Any, Any]:
    """Return the files of the checkpoint and its experiment, after Paxml is imported.

    Args:
      args: The command line.
      command: The command, for errors.

    Raises:
      UserError: Paxml or a GPU is missing, or the checkpoint or its experiment is not known.
    """
    from rosetta.inference import framework_imports, model_files
    from rosetta.launch import device_selection

    if find_spec("paxml") is None:
        raise UserError(
            "this environment has no paxml",
            command,
            "use an image or environment of the distribution pax",
            kind=MISSING,
        )
    files = model_files.find_model_files(args.checkpoint)
    machine = device_selection.detect_machine(os.environ)
    if machine.missing_gpu:
        raise machine.missing_gpu
    os.environ["JAX_PLATFORMS"] = machine.platforms
    framework_imports.import_paxml()
    return files, model_files.make_experiment(files, args.config, args.fdl, args.precision)
