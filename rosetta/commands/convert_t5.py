"""The command `rosetta convert t5`: convert a T5 between T5X and Hugging Face."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

from rosetta.commands import convert_options
from rosetta.core import folder_fingerprint, log, option_types
from rosetta.core.errors import CONFLICT, DIFFERS, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rosetta.convert.output_folder import PartFolder
    from rosetta.convert.t5_config import Architecture

_DTYPES = {"hf": ("float32", "bfloat16", "float16"), "t5x": ("float32", "bfloat16")}


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    t5 = convert_options.add_model_parser(
        models, "t5", "convert T5, mT5, byT5, umT5, Flan-T5 and UL2 between T5X and Hugging Face"
    )
    t5.add_argument(
        "--encoder-only",
        action="store_true",
        help="leave out the decoder: make a T5EncoderModel, or one for T5_FAMILY=t5_encoder",
    )
    t5.add_argument(
        "--dtype",
        choices=_DTYPES["hf"],
        help="the type of the numbers (default: hf: that of SOURCE; t5x: float32)",
    )
    t5.add_argument(
        "--activations",
        metavar="NAMES",
        help=(
            "from a T5X checkpoint that does not name them: the activations of the MLP "
            "(default: relu, or gelu,linear if it is gated; UL2: silu,linear)"
        ),
    )
    t5.add_argument(
        "--vocab",
        metavar="FILE|byte",
        help="for hf: the vocabulary of the model, to write its tokenizer",
    )
    t5.add_argument(
        "--extra-ids",
        type=option_types.make_whole_number_type(0),
        metavar="N",
        help="for hf: the sentinels that were added to the vocabulary",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert t5`; return its result and the text to print."""
    from rosetta.convert import output_folder, t5_conversion, t5_documents, t5_tensors
    from rosetta.convert.dtype_conversion import DTYPES

    layout, target = convert_options.choose_layouts(args)
    _check_options(args, layout, target)
    model = _open_model(args, layout, target)
    architecture = dataclasses.replace(
        model.architecture, vocab_size=convert_options.choose_row_count(args, model, target)
    )
    dtype_name = args.dtype or (model.dtype.name if target == "hf" else "float32")
    vocabulary = _load_vocabulary(args, model, architecture)
    key = {
        "source": folder_fingerprint.compute_fingerprint(args.source),
        "options": [target, dtype_name, args.step, args.activations, args.encoder_only],
        "architecture": architecture.as_text(),
    }
    with output_folder.resume_folder(args.out, key) as part:
        if layout == "t5x":
            model.decode_into(part.scratch)
        conversion = t5_conversion.Conversion(
            model, architecture, DTYPES[dtype_name], part, log.show_progress
        )
        if target == "hf":
            tokenizer_names = _write_tokenizer(vocabulary, part)
            conversion.write_hugging_face()
            lines = t5_documents.describe_changes(conversion)
            t5_documents.write_config(conversion)
            t5_documents.write_card(conversion, args.out.resolve().name, lines)
        else:
            tokenizer_names = _copy_tokenizer(args.source, part)
            conversion.write_checkpoint(
                t5_documents.make_record(conversion, args.step or 0, _find_fingerprint(args.source))
            )
            t5_documents.write_gin_file(conversion)
            lines = t5_documents.describe_changes(conversion)
    result = {
        "from": layout,
        "to": target,
        "out": str(args.out),
        "architecture": dataclasses.asdict(architecture),
        "dtype": dtype_name,
        "parameters": t5_tensors.count_parameters(architecture),
        "rounded": conversion.rounded,
        "dropped": model.dropped,
        "tokenizer": tokenizer_names,
    }
    tensor_count = len(t5_tensors.list_tensors(architecture))
    parameter_count = t5_tensors.count_parameters(architecture)
    counts = f"{tensor_count} tensors, {parameter_count:,} parameters, {dtype_name}"
    lines = [
        f"{escape(str(args.out), keep='')}: {counts}",
        *lines,
        "read back and compared: every tensor was written as it should be",
        _suggest_next(
            args, target, tokenizer_names, has_decoder=architecture.num_decoder_layers > 0
        ),
    ]
    return result, "\n".join(lines)


def _check_options(args: argparse.Namespace, layout: str, target: str) -> None:
    """Refuse options that do not go together.

    Args:
      args: The command line.
      layout: The layout of the source.
      target: The layout to make.

    Raises:
      UserError: An option does not fit the layouts, or OUT is below SOURCE.
    """
    from rosetta.convert import output_folder

    convert_options.check_needs_layout("--vocab", args.vocab, "hf", target)
    if args.activations and layout != "t5x":
        raise UserError(
            "works only for a checkpoint of T5X; config.json has the activations",
            "--activations",
            "leave it out",
            kind=CONFLICT,
        )
    if args.extra_ids is not None and args.vocab is None:
        raise UserError("works only with --vocab", "--extra-ids", "add --vocab", kind=CONFLICT)
    if args.dtype and args.dtype not in _DTYPES[target]:
        raise UserError(
            f"is {args.dtype}, and a checkpoint of T5X has {' or '.join(_DTYPES[target])}",
            "--dtype",
            "leave it out",
            kind=CONFLICT,
            value=args.dtype,
        )
    if layout == target == "hf":
        raise UserError(
            "the source is a model of Hugging Face already", "--to", "give t5x", kind=CONFLICT
        )
    output_folder.check_outside(args.out, args.source)


def _open_model(args: argparse.Namespace, layout: str, target: str) -> Any:
    """Open the source; return a rosetta.convert.t5_tensors.Model.

    Raises:
      UserError: The source is not a complete T5, or is in the layout to make already.
    """
    from rosetta.convert import huggingface_t5, t5_config, t5x_model

    if layout == "hf":
        return huggingface_t5.HuggingFaceT5(args.source, encoder_only=args.encoder_only)
    activations = None
    if args.activations:
        activations = t5_config.parse_activations(args.activations, "--activations")
    model = t5x_model.T5XModel(args.source, activations, encoder_only=args.encoder_only)
    if args.encoder_only and target == "t5x":
        return model
    if target == "t5x" and model.is_native and not model.is_scaled:
        raise UserError(
            "the source is a checkpoint of T5X in this layout already",
            "--to",
            "give hf",
            kind=CONFLICT,
        )
    return model


def _load_vocabulary(args: argparse.Namespace, model: Any, architecture: Architecture) -> Any:
    """Return the vocabulary of --vocab, or None.

    Args:
      args: The command line.
      model: The model to read.
      architecture: The architecture to write.

    Raises:
      UserError: The vocabulary is damaged, has more ids than the embedding has rows, or is not the
        one with which the model was trained.
    """
    if args.vocab is None:
        return None
    from rosetta.data import vocabularies

    recorded = model.record.vocabulary if model.record else ""
    vocabulary = vocabularies.load_vocabulary(args.vocab, args.extra_ids, recorded=recorded)
    vocabularies.check_model_size(vocabulary, architecture.vocab_size)
    if recorded and vocabulary.fingerprint() != recorded:
        raise UserError(
            "the model was trained with another vocabulary, or with other sentinels",
            f"--vocab {args.vocab}",
            "name the vocabulary of the training, and its EXTRA_IDS as --extra-ids",
            kind=DIFFERS,
            value=args.vocab,
        )
    return vocabulary


def _write_tokenizer(vocabulary: Any, part: PartFolder) -> list[str]:
    """Write the files of the tokenizer; return their names."""
    if vocabulary is None:
        return []
    from rosetta.convert import tokenizer_files

    names: list[str] = tokenizer_files.write_tokenizer(vocabulary, part.path)
    return names


def _copy_tokenizer(source: Path, part: PartFolder) -> list[str]:
    """Copy the files of a tokenizer; return their names."""
    from rosetta.convert import tokenizer_copy

    names: list[str] = tokenizer_copy.copy_tokenizer(source, part.path)
    return names


def _find_fingerprint(source: Path) -> str:
    """Return the fingerprint of the vocabulary in a model folder; "" if it has none for T5.

    That of a byT5 is left out: its sentinels were never trained, and a run may choose others.
    """
    from rosetta.data import tokenizer_folders, vocabularies

    if not tokenizer_folders.is_tokenizer_folder(str(source)):
        return ""
    try:
        vocabulary = vocabularies.load_vocabulary(str(source))
    except UserError as error:
        log.warn(f"the record does not name the vocabulary: {error}")
        return ""
    return "" if vocabulary.name == "byte" else vocabulary.fingerprint()


def _suggest_next(
    args: argparse.Namespace, target: str, tokenizer_names: list[str], *, has_decoder: bool
) -> str:
    """Return the line that says how to use the result."""
    from rosetta.convert import t5_documents

    out = str(args.out.resolve())
    if target == "hf":
        name = "AutoModelForSeq2SeqLM" if has_decoder else "AutoModelForTextEncoding"
        line = f"load it with: {name}.from_pretrained({out!r})"
        if not tokenizer_names:
            line = f"no tokenizer was written: --vocab names the vocabulary; {line}"
        return line
    family = {} if has_decoder else {"T5_FAMILY": "t5_encoder"}
    settings = {
        **family,
        "ROSETTA_GIN": f"{out}/{t5_documents.GIN_FILE}",
        "INITIAL_CHECKPOINT_PATH": out,
        "VOCAB": out if tokenizer_names else "VOCABULARY",
        "DATA": "text:FILES",
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    return f"train from it with: rosetta t5x pretrain {' '.join(words)}"
