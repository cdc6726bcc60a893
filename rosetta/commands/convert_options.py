"""Options of `rosetta convert` that the models between T5X and Hugging Face share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, TOO_BIG, UserError

if TYPE_CHECKING:
    import argparse

LAYOUTS = ("hf", "t5x")


def add_model_parser(models: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    """Add the parser of a model to those of `rosetta convert`, with the shared options."""
    parser: argparse.ArgumentParser = models.add_parser(
        name,
        help=help_text,
        description=(
            "Every tensor is read back and compared after it was written. A conversion that was "
            "killed continues when it is started again."
        ),
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help=(
            "a checkpoint_N of T5X, a folder of them, of which the newest is converted, or a model "
            "folder of Hugging Face"
        ),
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    parser.add_argument(
        "--to", choices=LAYOUTS, help="the layout to make (default: the one that SOURCE is not)"
    )
    parser.add_argument(
        "--vocab-size",
        type=option_types.parse_count,
        metavar="ROWS",
        help=(
            "the rows of the embedding in OUT (default: hf: without the rows that an import "
            "added; t5x: rounded up to a multiple of 128)"
        ),
    )
    parser.add_argument(
        "--step",
        type=option_types.make_whole_number_type(0),
        help="for t5x: the step of the checkpoint (default: 0)",
    )
    return parser


def choose_layouts(args: argparse.Namespace) -> tuple[str, str]:
    """Return the layout of the source, and the one to make.

    Raises:
      UserError: The folder has a model of Hugging Face and checkpoints of T5X, or --step does not
        fit the layout to make.
    """
    layout = "t5x"
    if (args.source / "config.json").exists():
        layout = "hf"
        if any(args.source.glob("checkpoint_*")):
            raise UserError(
                "has a model of Hugging Face (config.json) and checkpoints of T5X",
                str(args.source),
                "name the checkpoint_N, or move the other model away",
                kind=CONFLICT,
            )
    target = args.to or next(name for name in LAYOUTS if name != layout)
    check_needs_layout("--step", args.step, "t5x", target)
    return layout, target


def check_needs_layout(option: str, value: object, needed: str, target: str) -> None:
    """Check that an option that is set belongs to the layout to make.

    Raises:
      UserError: It belongs to the other one.
    """
    if value is not None and target != needed:
        raise UserError(f"works only with --to {needed}", option, "leave it out", kind=CONFLICT)


def choose_row_count(args: argparse.Namespace, model: Any, target: str) -> int:
    """Return the number of rows that the embedding gets in OUT.

    Raises:
      UserError: --vocab-size is so large that it must be a mistake.
    """
    from rosetta.data import vocabularies

    own_rows: int = model.architecture.vocab_size
    if args.vocab_size is not None:
        rows: int = args.vocab_size
        if rows > 2 * vocabularies.round_up_vocab_size(own_rows):
            raise UserError(
                f"is {rows}, and the model has {own_rows} rows",
                "--vocab-size",
                "give the number of ids that the model was trained with, or leave it out",
                kind=TOO_BIG,
                value=rows,
            )
        return rows
    if target == "hf":
        unpadded = model.record.unpadded_vocab_size if model.record else None
        return min(own_rows, unpadded or own_rows)
    return vocabularies.round_up_vocab_size(own_rows)
