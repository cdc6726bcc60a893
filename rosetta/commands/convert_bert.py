"""The command `rosetta convert bert`: convert a BERT between T5X and Hugging Face."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rosetta.commands import convert_options
from rosetta.core import folder_fingerprint, log
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    convert_options.add_model_parser(models, "bert", "convert BERT between T5X and Hugging Face")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert bert`; return its result and the text to print."""
    from rosetta.convert import bert_documents, bert_tensors, output_folder, t5_conversion
    from rosetta.convert.dtype_conversion import DTYPES

    layout, target = convert_options.choose_layouts(args)
    if target == layout:
        raise UserError(
            "the source is in this layout already",
            "--to",
            f"give {next(name for name in convert_options.LAYOUTS if name != layout)}",
            kind=CONFLICT,
        )
    output_folder.check_outside(args.out, args.source)
    model = _open_model(args.source, layout)
    architecture = dataclasses.replace(
        model.architecture, vocab_size=convert_options.choose_row_count(args, model, target)
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
