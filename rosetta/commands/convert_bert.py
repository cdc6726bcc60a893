"""The command `rosetta convert bert`: convert a BERT between T5X and Hugging Face."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import folder_fingerprint, log, option_types
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    import argparse

LAYOUTS = ("hf", "t5x")


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    bert = models.add_parser(
        "bert",
        help="convert BERT between T5X and Hugging Face",
        description=(
            "Every tensor is read back and compared after it was written. A conversion that was "
            "killed continues when it is started again."
        ),
    )
    bert.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help=(
            "a checkpoint_N of T5X, a folder of them, of which the newest is converted, or a model "
            "folder of Hugging Face"
        ),
    )
    bert.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    bert.add_argument(
        "--to", choices=LAYOUTS, help="the layout to make (default: the one that SOURCE is not)"
    )
    bert.add_argument(
        "--vocab-size",
        type=option_types.parse_count,
        metavar="ROWS",
        help=(
            "the rows of the embedding in OUT (default: hf: without the rows that an import "
            "added; t5x: rounded up to a multiple of 128)"
        ),
    )
    bert.add_argument(
        "--step",
        type=option_types.make_whole_number_type(0),
        help="for t5x: the step of the checkpoint (default: 0)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert bert`; return its result and the text to print."""
    from rosetta.convert import bert_documents, bert_tensors, output_folder, t5_conversion
    from rosetta.convert.dtype_conversion import DTYPES

    layout = "hf" if (args.source / "config.json").exists() else "t5x"
    target = args.to or next(name for name in LAYOUTS if name != layout)
    if target == layout:
        raise UserError(
            "the source is in this layout already",
            "--to",
            f"give {next(name for name in LAYOUTS if name != layout)}",
            kind=CONFLICT,
        )
    if args.step is not None and target != "t5x":
        raise UserError("works only with --to t5x", "--step", "leave it out", kind=CONFLICT)
    output_folder.check_outside(args.out, args.source)
    model = _open_model(args.source, layout)
    architecture = dataclasses.replace(
        model.architecture, vocab_size=args.vocab_size or _choose_row_count(model, target)
    )
    dtype_name = model.dtype.name if target == "hf" else "float32"
    key = {
        "source": folder_fingerprint.compute_fingerprint(args.source),
        "options": [target, dtype_name, args.step],
        "architecture": architecture.as_text(),
    }
    with output_folder.resume_folder(args.out, key) as part:
        conversion = t5_conversion.Conversion(
            model, architecture, DTYPES[dtype_name], part, log.show_progress
        )
        if target == "hf":
            conversion.write_hugging_face()
            bert_documents.write_config(conversion)
        else:
            bert_documents.copy_tokenizer(args.source, part.path)
            conversion.write_checkpoint(bert_documents.make_record(conversion, args.step or 0))
            bert_documents.write_gin_file(conversion)
        lines = bert_documents.describe_changes(conversion)
    tensors = bert_tensors.list_bert_tensors(architecture)
    result = {
        "from": layout,
        "to": target,
        "out": str(args.out),
        "architecture": dataclasses.asdict(architecture),
        "dtype": dtype_name,
        "rounded": conversion.rounded,
        "dropped": model.dropped,
    }
    lines = [
        f"{escape(str(args.out), keep='')}: {len(tensors)} tensors, {dtype_name}",
        *lines,
        "read back and compared: every tensor was written as it should be",
        bert_documents.suggest_next(str(args.out.resolve()), target, architecture),
    ]
    return result, "\n".join(lines)


def _open_model(source: Path, layout: str) -> Any:
    """Open the source; return a rosetta.convert.t5_tensors.Model."""
    from rosetta.convert import bert_models

    return bert_models.HuggingFaceBert(source) if layout == "hf" else bert_models.T5XBert(source)


def _choose_row_count(model: Any, target: str) -> int:
    """Return the number of rows that the embedding gets in OUT."""
    from rosetta.data import vocabularies

    own_rows: int = model.architecture.vocab_size
    if target == "hf":
        unpadded = model.record.unpadded_vocab_size if model.record else None
        return min(own_rows, unpadded or own_rows)
    return vocabularies.round_up_vocab_size(own_rows)
