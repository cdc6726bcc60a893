"""The command `rosetta convert llama`: convert the weights of a LLaMA model to another layout.

The layouts are Meta's, that of Hugging Face, and a checkpoint of Pax. One tensor at a time is in
memory.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, MISSING, UNSUPPORTED, UserError
from rosetta.core.printable_text import escape
from rosetta.core.value_parsing import parse_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rosetta.nn.rotary_positions import RotaryEmbedding

LAYOUTS = ("meta", "hf", "pax")
READ_BACK_ADVICE = "check the disk and convert again; nothing was left behind"

# Files that a folder of a layout must have, as glob patterns.
DESCRIPTIONS = {
    "meta": ("params.json",),
    "hf": ("config.json",),
    "pax": ("checkpoints", "state", "checkpoint_*"),
}
# Files that have the weights of a layout, as glob patterns.
WEIGHTS = {
    "meta": ("consolidated*.pth",),
    "hf": ("model*.safetensors", "pytorch_model*.bin"),
    "pax": (),
}


def _find_files(folder: Path, patterns: dict[str, tuple[str, ...]]) -> dict[str, Path]:
    """Return layout -> the first file of a folder that matches the layout's patterns."""
    paths = {}
    for layout, layout_patterns in patterns.items():
        for pattern in layout_patterns:
            matches = sorted(folder.glob(pattern))
            if matches and layout not in paths:
                paths[layout] = matches[0]
    return paths


def _detect_layout(folder: Path) -> str:
    """Return the layout of a folder, by the files in it.

    Raises:
      UserError: The folder does not exist, has no model, or has models of several layouts.
    """
    if not folder.is_dir():
        raise UserError(
            "is not a folder",
            str(folder),
            "name the folder that has the model's files",
            kind=MISSING,
        )
    described = _find_files(folder, DESCRIPTIONS)
    files = _find_files(folder, WEIGHTS) | described
    if not described:
        raise UserError(
            "has neither params.json (Meta), config.json (Hugging Face) nor checkpoints (Pax)",
            str(folder),
            "name the folder that has the model's files",
            kind=MISSING,
        )
    if len(files) > 1:
        names = [f"{path.name!r} ({layout})" for layout, path in sorted(files.items())]
        raise UserError(
            f"has more than one model: {' and '.join(names)}",
            str(folder),
            f"choose one with --from {' or --from '.join(sorted(files))}, or move the other away",
            kind=CONFLICT,
        )
    return next(iter(described))


def parse_epsilon(text: str) -> float:
    """Return the value of --norm-epsilon: a number above 0 and at most 1."""
    return parse_share(text, "1e-5")


def parse_share(text: str, example: str) -> float:
    """Return a number above 0 and at most 1 from a command line.

    Args:
      text: The text.
      example: A valid number, for the error.
    """
    number = parse_number("", text, above_zero=True)
    if number > 1:
        raise UserError(f"{text!r} is greater than 1", do=f"give a number such as {example}")
    return number


def parse_rotary_base(text: str) -> float:
    """Return the value of --rope-theta: a number above 1."""
    number = parse_number("", text, above_zero=True)
    if number <= 1:
        raise UserError(f"{text!r} is not above 1", do="give a number such as 500000")
    return number


def _parse_rotary_scaling(text: str) -> list[float]:
    """Return the value of --rope-scaling: four numbers above 0."""
    numbers = [parse_number("", part, above_zero=True) for part in text.split(",")]
    if len(numbers) != 4:
        raise UserError(f"{text!r} does not have four numbers", do="give for example 8,1,4,8192")
    return numbers


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    llama = models.add_parser(
        "llama",
        help="convert LLaMA 1 to 3 and Mistral between the files of Meta, Hugging Face and Pax",
        description="Every tensor is read back and compared after it was written.",
    )
    llama.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help=(
            "the folder with the model; for Pax the folder of the checkpoints, of which the newest "
            "is converted, or one checkpoint_N"
        ),
    )
    llama.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="the folder to make; for Pax, set CHECKPOINT_RESTORE_PATH to this folder later",
    )
    llama.add_argument(
        "--from",
        dest="source_layout",
        choices=LAYOUTS,
        help="the layout of SOURCE (default: the layout that its files show)",
    )
    llama.add_argument(
        "--to", choices=LAYOUTS, default="pax", help="the layout to make (default: pax)"
    )
    llama.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help=(
            "the type of the numbers in files for Meta and Hugging Face (default: bfloat16); a "
            "checkpoint of Pax always has float32"
        ),
    )
    llama.add_argument(
        "--repeated",
        action="store_true",
        help="for Pax: stack the layers in one array, as USE_REPEATED_LAYER=True needs them",
    )
    llama.add_argument(
        "--parts",
        type=option_types.parse_count,
        help="for Meta: the number of files (default: the number that LLaMA-2 has)",
    )
    llama.add_argument(
        "--norm-epsilon",
        type=parse_epsilon,
        help="from Pax: the epsilon of the RMS norms, which its files lack (default: 1e-5)",
    )
    llama.add_argument(
        "--rope-theta",
        type=parse_rotary_base,
        help="from Pax: the base of the rotary embedding, which its files lack (default: 10000)",
    )
    llama.add_argument(
        "--rope-scaling",
        type=_parse_rotary_scaling,
        metavar="FACTOR,LOW,HIGH,LENGTH",
        help="from Pax: the scaling of the rotary embedding (default: none; LLaMA 3.1: 8,1,4,8192)",
    )
    llama.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="for hf: the folder with the files of the tokenizer (default: SOURCE, if it has some)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert llama`; return its result and the text to print."""
    from rosetta.convert import llama, output_folder, pax_llama, tokenizer_copy
    from rosetta.convert.dtype_conversion import DTYPES, Cast

    layout = args.source_layout or _detect_layout(args.source)
    _check_options(args, layout)
    token_ids = tokenizer_copy.read_token_ids(args.tokenizer) if args.tokenizer else {}
    source = _open_source(args, layout)
    cast = Cast(DTYPES["float32" if args.to == "pax" else args.dtype or "bfloat16"])
    llama.check_tensors(source, str(args.source))
    if args.to == "pax":
        _check_head_width(source.sizes, str(args.source))
    parameter_count = llama.count_parameters(source.sizes)
    with output_folder.create_folder(args.out, parameter_count * cast.dtype.itemsize) as part:
        _write_model(args, source, cast, part, token_ids)
        _check_readable(args, source, cast.dtype, part)
        tokenizer_names = tokenizer_copy.copy_tokenizer(args.tokenizer or args.source, part)
        changes = _describe_changes(source, cast)
        if args.to == "hf":
            _write_card(args, source, layout, cast.dtype.name, changes, part)
            if not tokenizer_names:
                changes.append("no tokenizer was written: --tokenizer names a folder that has one")
    tensor_count = len(llama.list_tensor_shapes(source.sizes))
    counts = f"{tensor_count} tensors, {parameter_count:,} parameters, {cast.dtype.name}"
    lines = [
        f"{escape(str(args.out), keep='')}: {counts}",
        *changes,
        "read back and compared: every tensor was written as it should be",
    ]
    if args.to == "pax":
        lines.append(pax_llama.describe_experiment(source.sizes))
    result = {
        "from": layout,
        "to": args.to,
        "out": str(args.out),
        "shape": dataclasses.asdict(source.sizes),
        "parameters": parameter_count,
        "rounded": cast.rounded,
        "lora": getattr(source, "adapted", 0),
        "dropped": getattr(source, "dropped", []),
        "tokenizer": tokenizer_names,
    }
    return result, "\n".join(lines)


def _check_options(args: argparse.Namespace, layout: str) -> None:
    """Refuse options that do not go together.

    Args:
      args: The command line.
      layout: The layout of the source.

    Raises:
      UserError: An option does not fit the layouts, or OUT is below SOURCE.
    """
    from rosetta.convert import output_folder

    for option, value, target in (
        ("--repeated", args.repeated, "pax"),
        ("--parts", args.parts, "meta"),
        ("--tokenizer", args.tokenizer, "hf"),
    ):
        if value and args.to != target:
            raise UserError(f"works only with --to {target}", option, "leave it out", kind=CONFLICT)
    for option, value in (
        ("--norm-epsilon", args.norm_epsilon),
        ("--rope-theta", args.rope_theta),
        ("--rope-scaling", args.rope_scaling),
    ):
        if layout != "pax" and value is not None:
            raise UserError(
                f"works only for a checkpoint of Pax; the files in {args.source} have this value",
                option,
                "leave it out",
                kind=CONFLICT,
            )
    output_folder.check_outside(args.out, args.source)
    if args.to == "pax" and args.dtype not in (None, "float32"):
        raise UserError(
            f"is {args.dtype}, but a checkpoint of Pax has float32",
            "--dtype",
            "leave it out",
            kind=CONFLICT,
            value=args.dtype,
        )
    if args.to == layout == "pax":
        raise UserError(
            "the source is a checkpoint of Pax already", "--to", "give meta or hf", kind=CONFLICT
        )


def _check_head_width(sizes: Any, where: str) -> None:
    """Raise UserError if the heads are not as wide as the model, as Paxml's experiments need."""
    if sizes.heads * sizes.head_dim != sizes.dim:
        raise UserError(
            f"{sizes.heads} heads of {sizes.head_dim} features are not the width of the model, "
            f"{sizes.dim}, and Paxml's experiments cannot compute such a model",
            where,
            "convert a model with heads x head_dim = hidden_size",
            kind=UNSUPPORTED,
            value="head_dim",
        )


def _open_source(args: argparse.Namespace, layout: str) -> Any:
    """Open the model to convert; return a rosetta.convert.llama.Source.

    Raises:
      UserError: The model is not a complete LLaMA.
    """
    from rosetta.convert import llama
    from rosetta.nn import rotary_positions

    scaling = None
    if args.rope_scaling:
        scaling = rotary_positions.Scaling(*args.rope_scaling).check("--rope-scaling")
    rotary = rotary_positions.RotaryEmbedding(
        args.rope_theta or rotary_positions.DEFAULT_BASE, scaling
    )
    return _open_model(args.source, layout, args.norm_epsilon or llama.LLAMA2_EPSILON, rotary)


def _open_model(folder: Path, layout: str, epsilon: float, rotary: RotaryEmbedding) -> Any:
    """Open a model of a layout.

    Args:
      folder: The folder of the model.
      layout: One of LAYOUTS.
      epsilon: The epsilon of the RMS norms, which a checkpoint of Pax does not have.
      rotary: The rotary embedding, which a checkpoint of Pax does not have.

    Returns:
      A rosetta.convert.llama.Source.
    """
    from rosetta.convert import huggingface, meta_llama, pax_llama

    if layout == "pax":
        return pax_llama.Source(folder, epsilon, rotary)
    return {"meta": meta_llama, "hf": huggingface}[layout].Source(folder)


def _write_model(
    args: argparse.Namespace, source: Any, cast: Any, part: Path, token_ids: dict[str, Any]
) -> None:
    """Write the tensors of the source to the folder `part`, in the layout --to.

    Args:
      args: The command line.
      source: The source of the conversion.
      cast: The conversion to the type of the numbers.
      part: The folder.
      token_ids: Fields of config.json that --tokenizer states.
    """
    from rosetta.convert import huggingface, llama, meta_llama, pax_llama

    total = len(llama.list_tensor_shapes(source.sizes))

    def convert_tensors() -> Iterator[tuple[str, Any]]:
        for number, (name, tensor) in enumerate(llama.read_tensors(source, str(args.source)), 1):
            log.show_progress("writing", number, total)
            yield name, cast(name, tensor)

    if args.to == "pax":
        pax_llama.write_checkpoint(part, source.sizes, convert_tensors(), repeated=args.repeated)
    elif args.to == "meta":
        meta_llama.write_model(part, source.sizes, convert_tensors(), cast.dtype, parts=args.parts)
    else:
        extra = getattr(source, "extra", {}) | token_ids
        huggingface.write_model(part, source.sizes, convert_tensors(), cast.dtype, extra)


def _check_readable(args: argparse.Namespace, source: Any, dtype: Any, part: Path) -> None:
    """Check that the model in the folder `part` can be read back, and equals the source.

    Raises:
      UserError: It cannot, or differs. The error names the folder OUT, because `part` is removed.
    """
    try:
        written = _open_model(part, args.to, source.sizes.epsilon, source.sizes.rotary)
        check_written(source, written, dtype, args.out)
    except UserError as error:
        if not error.where.startswith(str(part)):
            raise
        raise UserError(
            f"the written files cannot be read back: {error.what}",
            str(args.out),
            READ_BACK_ADVICE,
            kind=DAMAGED,
        ) from None


def _write_card(
    args: argparse.Namespace,
    source: Any,
    layout: str,
    dtype_name: str,
    changes: Sequence[str],
    part: Path,
) -> None:
    """Write the model card.

    Args:
      args: The command line.
      source: The source of the conversion.
      layout: The layout of the source.
      dtype_name: The type of the numbers.
      changes: What `_describe_changes` returned.
      part: The folder to write into.
    """
    from rosetta.convert import llama, model_card

    sizes, sources = source.sizes, {"meta": "Meta's files", "hf": "Hugging Face's files"}
    origin = model_card.Origin(
        sources.get(layout, "a checkpoint of Pax"), "rosetta convert llama", "text-generation"
    )
    facts = {
        "layers": f"{sizes.layers}",
        "sizes": (
            f"{sizes.dim} features, {sizes.heads} heads of {sizes.head_dim}, {sizes.kv_heads} "
            f"heads of keys, MLP of {sizes.hidden}, {sizes.vocab:,} rows of the vocabulary"
        ),
        "parameters": f"{llama.count_parameters(sizes):,}, {dtype_name}",
        "made from": getattr(source, "name", args.source.resolve().name),
        "converted by": model_card.describe_converter(),
    }
    text = model_card.render_card(args.out.resolve().name, origin, "llama", facts, changes)
    (part / "README.md").write_text(text, encoding="utf-8")


def _describe_changes(source: Any, cast: Any) -> list[str]:
    """Return lines that say what differs from the source.

    Args:
      source: The source of the conversion.
      cast: The Cast that was used.
    """
    adapted = getattr(source, "adapted", 0)
    lines = [f"left out: {line}" for line in getattr(source, "dropped", ())]
    lines += getattr(source, "notes", ())
    if adapted:
        lines.append(f"LoRA's weights were added to those of {adapted} arrays")
    if cast.rounded:
        lines.append(f"{cast.rounded:,} values were rounded to {cast.dtype.name}")
    else:
        lines.append("all other values are unchanged" if adapted else "all values are unchanged")
    return lines


def check_written(source: Any, written: Any, dtype: Any, out: Path) -> None:
    """Compare a written model bit by bit with the tensors of its source in the new type.

    Args:
      source: The source of the conversion.
      written: The written model.
      dtype: The NumPy type of the written numbers.
      out: The folder that errors name.

    Raises:
      UserError: A tensor or a size of the model differs.
    """
    from rosetta.convert import llama
    from rosetta.convert.dtype_conversion import Cast, view_as_bits

    if written.sizes != source.sizes:
        raise UserError(
            f"the written model reads back as {written.sizes} instead of {source.sizes}",
            str(out),
            READ_BACK_ADVICE,
            kind=DIFFERS,
        )
    llama.check_tensors(written, str(out))
    cast = Cast(dtype)
    names = list(llama.list_tensor_shapes(source.sizes))
    for number, name in enumerate(names, 1):
        log.show_progress("comparing", number, len(names))
        expected = view_as_bits(cast(name, source.read(name)))
        actual = written.read(name)
        if actual.dtype != dtype or not (view_as_bits(actual) == expected).all():
            raise UserError(
                f"{name} reads back with other values than were written",
                str(out),
                READ_BACK_ADVICE,
                kind=DIFFERS,
                value=name,
            )
