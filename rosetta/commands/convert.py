"""`rosetta convert`: weights of a model from one layout to another, a tensor at a time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, MISSING, UserError
from rosetta.core.printable_text import escape
from rosetta.core.value_parsing import parse_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

LAYOUTS = ("meta", "hf", "pax")
TOKENIZER = "tokenizer.model"
READ_BACK_ADVICE = "check the disk and convert again; nothing was left behind"
DEFAULT_EPSILON = 1e-5  # of LLaMA-2's norms


DESCRIPTIONS = {
    "meta": ("params.json",),
    "hf": ("config.json",),
    "pax": ("checkpoints", "state", "checkpoint_*"),
}
WEIGHTS = {
    "meta": ("consolidated*.pth",),
    "hf": ("model*.safetensors", "pytorch_model*.bin"),
    "pax": (),
}


def _find_files(folder: Path, patterns: dict[str, tuple[str, ...]]) -> dict[str, Path]:
    """Return for each layout the first file of a folder with one of its names."""
    paths = {}
    for layout, names in patterns.items():
        first = next((path for name in names for path in sorted(folder.glob(name))), None)
        if first is not None:
            paths[layout] = first
    return paths


def _detect_layout(folder: Path) -> str:
    """Return whose layout a folder is in, by what lies in it."""
    if not folder.is_dir():
        raise UserError(
            "it is no folder",
            str(folder),
            "name the folder with the model's files in it",
            kind=MISSING,
        )
    described = _find_files(folder, DESCRIPTIONS)
    marks = _find_files(folder, WEIGHTS) | described
    if described and len(marks) > 1:
        names = " and ".join(f"{path.name!r} ({layout})" for layout, path in sorted(marks.items()))
        raise UserError(
            f"it holds more than one model: {names}",
            str(folder),
            f"say which with --from {' or --from '.join(sorted(marks))}, or move the other away",
            kind=CONFLICT,
        )
    if described:
        return next(iter(described))
    raise UserError(
        "it has neither params.json (Meta), config.json (Hugging Face) nor checkpoints (Pax)",
        str(folder),
        "name the folder with the model's files in it",
        kind=MISSING,
    )


def _parse_epsilon(text: str) -> float:
    """Parse an option's value as a number above 0 and at most 1."""
    number = parse_number("", text, above_zero=True)
    if number > 1:
        raise UserError(f"{text!r} is above 1", do="give a number such as 1e-5")
    return number


def add_parsers(commands: Any, common: Any) -> None:
    """Add the command to the grammar."""
    convert = commands.add_parser("convert", parents=[common])
    models = convert.add_subparsers(dest="model", metavar="MODEL")
    llama = models.add_parser(
        "llama",
        help="convert LLaMA and LLaMA-2 between the files of Meta, Hugging Face and Pax",
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
        type=_parse_epsilon,
        help="from Pax: the epsilon of the RMS norms, which its files lack (default: 1e-5)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Convert; return the result and its text."""
    from rosetta.convert import huggingface, llama, meta_llama, output_folder, pax_checkpoint
    from rosetta.convert.dtype_conversion import DTYPES, Cast

    layout = args.source_layout or _detect_layout(args.source)
    for option, value, only in (
        ("--repeated", args.repeated, "pax"),
        ("--parts", args.parts, "meta"),
    ):
        if value and args.to != only:
            raise UserError(f"it is for --to {only}", option, "leave it out", kind=CONFLICT)
    if layout != "pax" and args.norm_epsilon is not None:
        raise UserError(
            f"it is for a source of Pax's, and {args.source} says its own",
            "--norm-epsilon",
            "leave it out",
            kind=CONFLICT,
        )
    if args.source.resolve() in args.out.resolve().parents:
        raise UserError(
            f"it lies in {args.source}, which is only read",
            str(args.out),
            "name a folder elsewhere",
            kind=CONFLICT,
        )
    if args.to == "pax" and args.dtype not in (None, "float32"):
        raise UserError(
            f"it is {args.dtype}, and a checkpoint of Pax holds float32",
            "--dtype",
            "leave it out",
            kind=CONFLICT,
            value=args.dtype,
        )
    if args.to == layout == "pax":
        raise UserError(
            "a checkpoint of Pax is one already", "--to", "give meta or hf", kind=CONFLICT
        )
    source: Any = (
        pax_checkpoint.Source(args.source, args.norm_epsilon or DEFAULT_EPSILON)
        if layout == "pax"
        else {"meta": meta_llama, "hf": huggingface}[layout].Source(args.source)
    )
    shape, cast = (
        source.shape,
        Cast(DTYPES["float32" if args.to == "pax" else args.dtype or "bfloat16"]),
    )
    llama.check_tensors(source, str(args.source))
    total = len(llama.list_tensor_sizes(shape))

    def tensors() -> Iterator[tuple[str, Any]]:
        for number, (name, tensor) in enumerate(llama.read_tensors(source, str(args.source)), 1):
            show_progress("writing", number, total)
            yield name, cast(name, tensor)

    with output_folder.create_folder(
        args.out, llama.count_parameters(shape) * cast.dtype.itemsize
    ) as part:
        if args.to == "pax":
            pax_checkpoint.write_checkpoint(part, shape, tensors(), repeated=args.repeated)
        elif args.to == "meta":
            meta_llama.write_model(part, shape, tensors(), cast.dtype, parts=args.parts)
        else:
            huggingface.write_model(
                part, shape, tensors(), cast.dtype, getattr(source, "extra", None)
            )
        try:
            written = (
                pax_checkpoint.Source(part, shape.epsilon)
                if args.to == "pax"
                else {"meta": meta_llama, "hf": huggingface}[args.to].Source(part)
            )
            check_written(source, written, cast.dtype, args.out)
        except UserError as error:
            if not error.where.startswith(str(part)):
                raise
            raise UserError(
                f"what was written cannot be read back: {error.what}",
                str(args.out),
                READ_BACK_ADVICE,
                kind=DAMAGED,
            ) from None
        if (tokenizer := args.source / TOKENIZER).is_file():
            shutil.copyfile(tokenizer, part / TOKENIZER)
    lines = [
        (
            f"{escape(str(args.out), keep='')}: {total} tensors, {llama.count_parameters(shape):,} "
            f"parameters, {cast.dtype.name}"
        )
    ]
    adapted = getattr(source, "adapted", 0)
    if adapted:
        lines.append(f"LoRA's weights were added to those of {adapted} arrays")
    if cast.rounded:
        lines.append(f"{cast.rounded:,} values were rounded to {cast.dtype.name}")
    else:
        lines.append(
            "every other value is what it was" if adapted else "every value is what it was"
        )
    lines.append("read back and compared: every tensor was written as it should be")
    if args.to == "pax":
        lines.append(pax_checkpoint.describe_experiment(shape))
    result = {
        "from": layout,
        "to": args.to,
        "out": str(args.out),
        "shape": vars(shape),
        "parameters": llama.count_parameters(shape),
        "rounded": cast.rounded,
        "lora": adapted,
    }
    return result, "\n".join(lines)


def check_written(source: Any, written: Any, dtype: Any, out: Path) -> None:
    """Read back what was written, and compare it bit by bit with the source's tensors as they are
    in the new type.

    Raises:
      UserError: a tensor, or a size of the model, is another.
    """
    from rosetta.convert import llama
    from rosetta.convert.dtype_conversion import Cast, view_as_bits

    advice = READ_BACK_ADVICE
    if written.shape != source.shape:
        raise UserError(
            (
                f"the model that was written reads back as {written.shape}, where {source.shape} "
                "was meant"
            ),
            str(out),
            advice,
            kind=DIFFERS,
        )
    llama.check_tensors(written, str(out))
    cast, names = Cast(dtype), list(llama.list_tensor_sizes(source.shape))
    for number, name in enumerate(names, 1):
        show_progress("comparing", number, len(names))
        expected, held = view_as_bits(cast(name, source.read(name))), written.read(name)
        if held.dtype != dtype or not (view_as_bits(held) == expected).all():
            raise UserError(
                f"{name} reads back with other values than were written",
                str(out),
                advice,
                kind=DIFFERS,
                value=name,
            )


def show_progress(action: str, number: int, total: int) -> None:
    """Show on a terminal which of how many tensors is worked on."""
    log.show_count(f"{action} {number}/{total}", last=number == total)


RUN = {"convert": run}
