"""The command `rosetta convert t5`: convert a T5 between T5X and Hugging Face."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.commands.convert_llama import show_progress
from rosetta.core import option_types
from rosetta.core.errors import CONFLICT, TOO_BIG, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    import argparse

    from rosetta.convert.output_folder import PartFolder
    from rosetta.convert.t5_conversion import Conversion

LAYOUTS = ("hf", "t5x")
ROW_MULTIPLE = 128
GIN_FILE = "model.gin"
# Files of a tokenizer in a folder of Hugging Face, which a checkpoint of T5X gets beside it.
TOKENIZER_FILES = (
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_DTYPES = {"hf": ("float32", "bfloat16", "float16"), "t5x": ("float32", "bfloat16")}


_parse_whole_number = option_types.make_whole_number_type(0)


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    t5 = models.add_parser(
        "t5",
        help="convert T5, mT5, byT5, umT5, Flan-T5 and UL2 between T5X and Hugging Face",
        description=(
            "Every tensor is read back and compared after it was written. A conversion that was "
            "killed continues when it is started again."
        ),
    )
    t5.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help=(
            "a checkpoint_N of T5X, a folder of them, of which the newest is converted, or a model "
            "folder of Hugging Face"
        ),
    )
    t5.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    t5.add_argument(
        "--to", choices=LAYOUTS, help="the layout to make (default: the one that SOURCE is not)"
    )
    t5.add_argument(
        "--dtype",
        choices=_DTYPES["hf"],
        help="the type of the numbers (default: hf: that of SOURCE; t5x: float32)",
    )
    t5.add_argument(
        "--vocab-size",
        type=option_types.parse_count,
        metavar="ROWS",
        help=(
            "the rows of the embedding in OUT (default: hf: without the rows that an import "
            f"added; t5x: rounded up to a multiple of {ROW_MULTIPLE})"
        ),
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
        "--step",
        type=_parse_whole_number,
        help="for t5x: the step of the checkpoint (default: 0)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert t5`; return its result and the text to print."""
    from rosetta.convert import output_folder, t5_conversion, t5_tensors
    from rosetta.convert.dtype_conversion import DTYPES

    layout = _detect_layout(args.source)
    target = args.to or next(name for name in LAYOUTS if name != layout)
    _check_options(args, layout, target)
    model = _open_model(args, layout, target)
    architecture = dataclasses.replace(
        model.architecture, vocab_size=_choose_row_count(args, model, target)
    )
    dtype_name = args.dtype or (model.dtype.name if target == "hf" else "float32")
    key = {
        "source": _fingerprint_files(args.source),
        "options": [target, dtype_name, args.step, args.activations],
        "architecture": architecture.as_text(),
    }
    with output_folder.resume_folder(args.out, key) as part:
        conversion = t5_conversion.Conversion(
            model, architecture, DTYPES[dtype_name], part, show_progress
        )
        if target == "hf":
            conversion.write_hugging_face()
            lines = _describe(conversion)
            tokenizer_files: list[str] = []
            _write_hugging_face_files(args, conversion, lines)
        else:
            _write_checkpoint(args, conversion)
            lines = _describe(conversion)
            tokenizer_files = _copy_tokenizer(args.source, part)
    result = {
        "from": layout,
        "to": target,
        "out": str(args.out),
        "architecture": dataclasses.asdict(architecture),
        "dtype": dtype_name,
        "parameters": t5_tensors.count_parameters(architecture),
        "rounded": conversion.rounded,
        "dropped": model.dropped,
        "tokenizer": tokenizer_files,
    }
    tensor_count = len(t5_tensors.list_tensors(architecture))
    parameter_count = t5_tensors.count_parameters(architecture)
    counts = f"{tensor_count} tensors, {parameter_count:,} parameters, {dtype_name}"
    lines = [
        f"{escape(str(args.out), keep='')}: {counts}",
        *lines,
        "read back and compared: every tensor was written as it should be",
        _suggest_next(args, target, tokenizer_files),
    ]
    return result, "\n".join(lines)


def _detect_layout(source: Path) -> str:
    """Return the layout of a source.

    Raises:
      UserError: The folder has a model of Hugging Face and checkpoints of T5X.
    """
    if not (source / "config.json").exists():
        return "t5x"
    if any(source.glob("checkpoint_*")):
        raise UserError(
            "has a model of Hugging Face (config.json) and checkpoints of T5X",
            str(source),
            "name the checkpoint_N, or move the other model away",
            kind=CONFLICT,
        )
    return "hf"


def _check_options(args: argparse.Namespace, layout: str, target: str) -> None:
    """Refuse options that do not go together.

    Args:
      args: The command line.
      layout: The layout of the source.
      target: The layout to make.

    Raises:
      UserError: An option does not fit the layouts, or OUT is below SOURCE.
    """
    for option, value, needed in (("--step", args.step, "t5x"),):
        if value is not None and target != needed:
            raise UserError(f"works only with --to {needed}", option, "leave it out", kind=CONFLICT)
    if args.activations and layout != "t5x":
        raise UserError(
            "works only for a checkpoint of T5X; config.json has the activations",
            "--activations",
            "leave it out",
            kind=CONFLICT,
        )
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
    source, out = args.source.resolve(), args.out.resolve()
    if source in out.parents or source == out:
        raise UserError(
            f"is inside {args.source}, where nothing is written",
            str(args.out),
            "name a folder elsewhere",
            kind=CONFLICT,
        )


def _open_model(args: argparse.Namespace, layout: str, target: str) -> Any:
    """Open the source; return a rosetta.convert.t5_tensors.Model.

    Raises:
      UserError: The source is not a complete T5, or is in the layout to make already.
    """
    from rosetta.convert import huggingface_t5, t5_config, t5x_model

    if layout == "hf":
        return huggingface_t5.HuggingFaceT5(args.source)
    activations = None
    if args.activations:
        activations = t5_config.parse_activations(args.activations, "--activations")
    model = t5x_model.T5XModel(args.source, activations)
    if target == "t5x" and model.is_native and not model.is_scaled:
        raise UserError(
            "the source is a checkpoint of T5X in this layout already",
            "--to",
            "give hf",
            kind=CONFLICT,
        )
    return model


def _choose_row_count(args: argparse.Namespace, model: Any, target: str) -> int:
    """Return the number of rows that the embedding gets in OUT.

    Raises:
      UserError: --vocab-size is so large that it must be a mistake.
    """
    own_rows: int = model.architecture.vocab_size
    if args.vocab_size is not None:
        rows: int = args.vocab_size
        if rows > 2 * own_rows + ROW_MULTIPLE:
            raise UserError(
                f"is {rows}, and the model has {own_rows} rows",
                "--vocab-size",
                "give the number of ids that the model was trained with, or leave it out",
                kind=TOO_BIG,
                value=rows,
            )
        return rows
    if target == "hf":
        record = getattr(model, "record", None)
        unpadded = record.unpadded_vocab_size if record else None
        return min(own_rows, unpadded or own_rows)
    return -(-own_rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _fingerprint_files(source: Path) -> str:
    """Return a hash that changes when a file of the source is replaced."""
    digest = hashlib.sha256(str(source.resolve()).encode("utf-8", "surrogateescape"))
    for path in sorted(source.rglob("*")):
        if path.is_file():
            status = path.stat()
            entry = f"\0{path.relative_to(source)}\0{status.st_size}\0{status.st_mtime_ns}"
            digest.update(entry.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _copy_tokenizer(source: Path, part: PartFolder) -> list[str]:
    """Copy the files of a tokenizer; return their names."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, part.path / name)
    return names


def _write_hugging_face_files(
    args: argparse.Namespace, conversion: Conversion, changes: list[str]
) -> None:
    """Write config.json, generation_config.json and the model card.

    Args:
      args: The command line.
      conversion: The conversion, whose weights are written.
      changes: The lines that say what has changed.
    """
    from rosetta.convert import json_documents, model_card, t5_config, t5_tensors

    architecture, folder = conversion.architecture, conversion.part.path
    config = t5_config.make_config(architecture, conversion.dtype.name)
    json_documents.write_document(folder / "config.json", config)
    json_documents.write_document(
        folder / "generation_config.json", t5_config.make_generation_config()
    )
    source = conversion.model.source  # type: ignore[attr-defined]
    record = source.record
    versions = record.versions if record else {}
    facts = {
        "architecture": (
            f"{config['architectures'][0]}, {architecture.num_encoder_layers} encoder and "
            f"{architecture.num_decoder_layers} decoder layers, {architecture.emb_dim} features, "
            f"{architecture.num_heads} heads of {architecture.head_dim}"
        ),
        "parameters": f"{t5_tensors.count_parameters(architecture):,}, {conversion.dtype.name}",
        "made from": f"{source.folder.name} ({source.format})",
        "step": f"{source.step:,}",
        "run": (record.run if record else "") or "not recorded",
        "trained with": ", ".join(f"{name} {version}" for name, version in versions.items())
        or "not recorded",
        "converted by": model_card.describe_converter(),
    }
    card = model_card.render_card(args.out.resolve().name, config["model_type"], facts, changes)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write_checkpoint(args: argparse.Namespace, conversion: Conversion) -> None:
    """Write the checkpoint of T5X, and the gin file that describes its network."""
    from rosetta.t5x.run import checkpoint_record

    architecture, model = conversion.architecture, conversion.model
    own_rows = model.architecture.vocab_size
    old = getattr(model, "record", None)
    record = checkpoint_record.Record(
        step=args.step or 0,
        scale_attn_logits=False,
        batch_size=old.batch_size if old else None,
        targets_length=old.targets_length if old else None,
        vocabulary=old.vocabulary if old else "",
        config=architecture.as_text(),
        versions={"converter": "rosetta convert t5"},
        unpadded_vocab_size=own_rows if own_rows < architecture.vocab_size else None,
    )
    conversion.write_checkpoint(args.step or 0, record)
    values = dataclasses.asdict(architecture)
    del values["dropout_rate"]  # of the run, not of the weights
    (conversion.part.path / GIN_FILE).write_text(
        "# The network of the checkpoint in this folder. Read it with ROSETTA_GIN.\n"
        "from __gin__ import dynamic_registration\n\n"
        "from rosetta.t5x import network\n\n"
        "network.T5Config:\n"
        + "".join(f"  {name} = {value!r}\n" for name, value in values.items()),
        encoding="utf-8",
    )


def _describe(conversion: Conversion) -> list[str]:
    """Return lines that say what the conversion changed, added or left out."""
    model = conversion.model
    lines = [f"left out: {line}" for line in model.dropped]
    lines += model.notes
    if getattr(model, "is_scaled", False):
        amount = "exactly"
        if conversion.fold_difference:
            amount = f"with a relative difference of at most {conversion.fold_difference:.1e}"
        lines.append(
            f"the division of attention logits by sqrt({model.architecture.head_dim}) is now in "
            f"the query kernels, {amount}"
        )
    own_rows, rows = model.architecture.vocab_size, conversion.architecture.vocab_size
    if rows > own_rows:
        lines.append(
            f"the vocabulary of {own_rows:,} ids was padded to {rows:,} rows of zeros, whose "
            "logits are 0"
        )
    if rows < own_rows:
        lines.append(
            f"left out: the last {own_rows - rows:,} of {own_rows:,} rows of the vocabulary"
        )
    if conversion.rounded:
        lines.append(f"{conversion.rounded:,} values were rounded to {conversion.dtype.name}")
    elif not getattr(model, "is_scaled", False):
        lines.append("all values are unchanged")
    return lines


def _suggest_next(args: argparse.Namespace, target: str, tokenizer_files: list[str]) -> str:
    """Return the line that says how to use the result."""
    out = str(args.out.resolve())
    if target == "hf":
        return f"load it with: AutoModelForSeq2SeqLM.from_pretrained({out!r})"
    vocabulary = f"{out}/spiece.model" if "spiece.model" in tokenizer_files else "VOCABULARY"
    return (
        f"train from it with: rosetta t5x pretrain ROSETTA_GIN={shlex.quote(f'{out}/{GIN_FILE}')} "
        f"INITIAL_CHECKPOINT_PATH={shlex.quote(out)} VOCAB={shlex.quote(vocabulary)} DATA=... "
    ).rstrip()
