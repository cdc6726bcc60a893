"""The command `rosetta convert gpt`: convert a GPT between Pax and Hugging Face.

One tensor at a time is in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.commands import convert_llama
from rosetta.core import log, option_types
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, TOO_BIG, UserError
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rosetta.convert.pax_gpt import Settings

LAYOUTS = ("hf", "pax")
# Pax's names of activations that transformers has, too; the first is the default.
ACTIVATIONS = ("GELU", "ExactGELU", "ReLU", "SiLU")
_DEFAULT_EPSILON, _DEFAULT_POSITIONS, _DEFAULT_BASE = 1e-5, 2048, 10_000.0
# The options of a checkpoint of Pax, by the name of the argument.
_PAX_OPTIONS = {
    "activation": "--activation",
    "norm_epsilon": "--norm-epsilon",
    "rotary_fraction": "--rotary-fraction",
    "rope_theta": "--rope-theta",
    "parallel_residual": "--parallel-residual",
    "positions": "--positions",
}


def add_parser(models: Any) -> None:
    """Add the parser of the model to those of `rosetta convert`."""
    gpt = models.add_parser(
        "gpt",
        help="convert GPT-2 and GPT-NeoX between Pax's GPT and Hugging Face",
        description="Every tensor is read back and compared after it was written.",
    )
    gpt.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help=(
            "a model folder of Hugging Face, the folder of a run of Pax, of which the newest "
            "checkpoint is converted, or one checkpoint_N"
        ),
    )
    gpt.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="the folder to make; for Pax, set CHECKPOINT_RESTORE_PATH to this folder later",
    )
    gpt.add_argument(
        "--to", choices=LAYOUTS, help="the layout to make (default: the one that SOURCE is not)"
    )
    gpt.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="for hf: the type of the numbers (default: float32)",
    )
    gpt.add_argument(
        "--repeated",
        action="store_true",
        help="for pax: stack the layers in one array, as USE_REPEATED_LAYER=True needs them",
    )
    gpt.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="for hf: the folder with the files of the tokenizer (default: SOURCE, if it has some)",
    )
    gpt.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        help="from Pax: the run's ACTIVATION_CLS, which its files lack (default: GELU)",
    )
    gpt.add_argument(
        "--norm-epsilon",
        type=convert_llama.parse_epsilon,
        help="from Pax: the run's LAYERNORM_EPSILON (default: 1e-5)",
    )
    gpt.add_argument(
        "--rotary-fraction",
        type=_parse_fraction,
        help="from Pax: the run's ROTARY_FRACTION (default: none, positions are learned)",
    )
    gpt.add_argument(
        "--rope-theta",
        type=convert_llama.parse_rotary_base,
        help="from Pax: the run's ROPE_THETA (default: 10000)",
    )
    gpt.add_argument(
        "--parallel-residual",
        action="store_true",
        default=None,
        help="from Pax: the run had PARALLEL_RESIDUAL=True",
    )
    gpt.add_argument(
        "--positions",
        type=option_types.parse_count,
        metavar="TOKENS",
        help="from Pax with rotary positions: the run's MAX_SEQ_LEN (default: 2048)",
    )


def _parse_fraction(text: str) -> float:
    """Return the value of --rotary-fraction: a number above 0 and at most 1."""
    return convert_llama.parse_share(text, "0.25")


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta convert gpt`; return its result and the text to print."""
    from rosetta.convert import gpt, output_folder, pax_checkpoint, tokenizer_copy
    from rosetta.convert.dtype_conversion import DTYPES, Cast

    layout = "hf" if (args.source / "config.json").exists() else "pax"
    target = args.to or next(name for name in LAYOUTS if name != layout)
    _check_options(args, layout, target)
    ids = tokenizer_copy.read_token_ids(args.tokenizer) if args.tokenizer else {}
    model = _open_model(args.source, layout, _read_settings(args))
    architecture = model.architecture
    if target == "hf" and not args.tokenizer:
        ids = _read_ids_beside_tokenizer(args.source)
    _check_ids(ids, architecture.vocab, args)
    cast = Cast(DTYPES[args.dtype or "float32"])
    parameter_count = gpt.count_parameters(architecture)
    with output_folder.create_folder(args.out, parameter_count * cast.dtype.itemsize) as part:
        changed_scales = _write_model(args, model, target, cast, part, ids)
        _check_written(model, target, cast.dtype, part, args.out)
        tokenizer_names = tokenizer_copy.copy_tokenizer(args.tokenizer or args.source, part)
        changes = _describe_changes(model, target, cast, changed_scales)
        if target == "hf":
            _write_card(args, model, cast.dtype.name, changes, part)
            if not tokenizer_names:
                changes.append("no tokenizer was written: --tokenizer names a folder that has one")
    tensor_count = len(gpt.list_tensors(architecture))
    counts = f"{tensor_count} tensors, {parameter_count:,} parameters, {cast.dtype.name}"
    lines = [
        f"{escape(str(args.out), keep='')}: {counts}",
        *changes,
        "read back and compared: every tensor was written as it should be",
    ]
    if target == "pax":
        settings = pax_checkpoint.format_options(architecture.make_fdl_settings())
        lines.append(f"give an experiment of GPT {settings}")
    result = {
        "from": layout,
        "to": target,
        "out": str(args.out),
        "architecture": architecture.as_document(),
        "dtype": cast.dtype.name,
        "parameters": parameter_count,
        "rounded": cast.rounded,
        "changed_scales": changed_scales,
        "dropped": model.dropped,
        "tokenizer": tokenizer_names,
    }
    return result, "\n".join(lines)


def _check_options(args: argparse.Namespace, layout: str, target: str) -> None:
    """Refuse options that do not go together.

    Args:
      args: The command line.
      layout: The layout of the source.
      target: The layout to make.

    Raises:
      UserError: An option does not fit the layouts, or OUT is in SOURCE.
    """
    from rosetta.convert import output_folder

    if layout == target:
        other = next(name for name in LAYOUTS if name != layout)
        raise UserError(
            "the source has this layout already", "--to", f"give {other}", kind=CONFLICT
        )
    for option, value, needed in (
        ("--repeated", args.repeated, "pax"),
        ("--dtype", args.dtype, "hf"),
        ("--tokenizer", args.tokenizer, "hf"),
    ):
        if value and target != needed:
            raise UserError(f"works only with --to {needed}", option, "leave it out", kind=CONFLICT)
    for name, option in _PAX_OPTIONS.items():
        if layout != "pax" and getattr(args, name) is not None:
            raise UserError(
                "works only for a checkpoint of Pax; config.json has this value",
                option,
                "leave it out",
                kind=CONFLICT,
            )
    output_folder.check_outside(args.out, args.source)


def _read_settings(args: argparse.Namespace) -> Settings:
    """Return what the command line says of a checkpoint of Pax."""
    from rosetta.convert.pax_gpt import Settings

    return Settings(
        activation=args.activation or ACTIVATIONS[0],
        epsilon=args.norm_epsilon or _DEFAULT_EPSILON,
        rotary_fraction=args.rotary_fraction,
        rotary_base=args.rope_theta or _DEFAULT_BASE,
        parallel_residual=bool(args.parallel_residual),
        positions=args.positions or _DEFAULT_POSITIONS,
    )


def _open_model(folder: Path, layout: str, settings: Settings) -> Any:
    """Open a model of a layout; return a rosetta.convert.gpt.Model.

    Raises:
      UserError: The folder does not have a complete GPT.
    """
    from rosetta.convert import huggingface_gpt, pax_gpt

    if layout == "hf":
        return huggingface_gpt.HuggingFaceGPT(folder)
    return pax_gpt.PaxGPT(folder, settings)


def _read_ids_beside_tokenizer(source: Path) -> dict[str, Any]:
    """Return the ids of special tokens of a converted folder that has a tokenizer, by field."""
    from rosetta.convert import tokenizer_copy

    return tokenizer_copy.read_token_ids(source) if tokenizer_copy.has_tokenizer(source) else {}


def _check_ids(ids: dict[str, Any], vocab: int, args: argparse.Namespace) -> None:
    """Raise UserError if an id of a special token is beyond the vocabulary."""
    for name, value in ids.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(0 <= number < vocab for number in numbers):
            raise UserError(
                f"{name!r} is {value}, and the model has {vocab} ids",
                str(args.tokenizer or args.source),
                "name the folder of the model's own tokenizer",
                kind=TOO_BIG,
                value=name,
            )


def _write_model(
    args: argparse.Namespace, model: Any, target: str, cast: Any, part: Path, ids: dict[str, Any]
) -> int:
    """Write the tensors of a model to the folder `part`.

    Args:
      args: The command line.
      model: The model to convert.
      target: The layout to make.
      cast: The conversion to the type of the numbers.
      part: The folder.
      ids: The ids of special tokens, for Hugging Face.

    Returns:
      How many scales of norms are not the same after 1 was subtracted and added again.
    """
    from rosetta.convert import gpt, huggingface_gpt, pax_gpt

    tensors = gpt.list_tensors(model.architecture)
    changed_scales = 0

    def convert_tensors() -> Iterator[Any]:
        nonlocal changed_scales
        for number, tensor in enumerate(tensors, 1):
            log.show_progress("writing", number, len(tensors))
            values = cast(tensor.name, model.read(tensor))
            if target == "pax" and tensor.is_norm_scale:
                expected = _expect_values(tensor, values, model.architecture, target)
                changed_scales += int((expected != values).sum())
            yield values

    if target == "pax":
        pax_gpt.write_checkpoint(
            part, model.architecture, convert_tensors(), repeated=args.repeated
        )
    else:
        huggingface_gpt.write_model(part, model.architecture, convert_tensors(), cast.dtype, ids)
    return changed_scales


def _expect_values(tensor: Any, values: Any, architecture: Any, target: str) -> Any:
    """Return the values that a written tensor should read back as."""
    if target != "pax":
        return values
    return tensor.form.to_hf(tensor.form.to_pax(values, architecture), architecture)


def _check_written(model: Any, target: str, dtype: Any, part: Path, out: Path) -> None:
    """Compare a written model bit by bit with the model that was converted.

    Args:
      model: The model that was converted.
      target: The layout that was made.
      dtype: The type of the written numbers.
      part: The folder that was written.
      out: The folder that errors name, because `part` is removed.

    Raises:
      UserError: The written model cannot be read back, or differs.
    """
    from rosetta.convert import gpt
    from rosetta.convert.dtype_conversion import Cast, view_as_bits

    architecture = model.architecture
    try:
        written = _open_model(part, target, _make_settings(architecture))
        has_same_architecture = written.architecture == architecture
        differing = [] if has_same_architecture else ["config.json"]
        cast, tensors = Cast(dtype), gpt.list_tensors(architecture)
        for number, tensor in enumerate(tensors, 1):
            log.show_progress("comparing", number, len(tensors))
            values = cast(tensor.name, model.read(tensor))
            expected = view_as_bits(_expect_values(tensor, values, architecture, target))
            actual = written.read(tensor)
            if actual.dtype != dtype or not (view_as_bits(actual) == expected).all():
                differing.append(tensor.name)
    except UserError as error:
        if not error.where.startswith(str(part)):
            raise
        raise UserError(
            f"the written files cannot be read back: {error.what}",
            str(out),
            convert_llama.READ_BACK_ADVICE,
            kind=DAMAGED,
        ) from None
    if differing:
        raise UserError(
            f"{differing[0]} reads back with other values than were written",
            str(out),
            convert_llama.READ_BACK_ADVICE,
            kind=DIFFERS,
            value=differing[0],
        )


def _make_settings(architecture: Any) -> Settings:
    """Return the settings with which a written checkpoint of Pax is read back."""
    from rosetta.convert import gpt
    from rosetta.convert.pax_gpt import Settings

    is_rotary = architecture.layout == gpt.GPT_NEOX
    return Settings(
        activation=architecture.activation,
        epsilon=architecture.epsilon,
        rotary_fraction=architecture.rotary_fraction if is_rotary else None,
        rotary_base=architecture.rotary_base,
        parallel_residual=architecture.parallel_residual,
        positions=architecture.positions,
    )


def _describe_changes(model: Any, target: str, cast: Any, changed_scales: int) -> list[str]:
    """Return lines that say what differs from the source.

    Args:
      model: The model that was converted.
      target: The layout that was made.
      cast: The Cast that was used.
      changed_scales: The result of `_write_model`.
    """
    lines = [f"left out: {line}" for line in model.dropped]
    adapted = getattr(model, "adapted", 0)
    if adapted:
        lines.append(f"LoRA's weights were added to those of {adapted} arrays")
    action = "subtracted from" if target == "pax" else "added to"
    lines.append(f"1 was {action} the scales of the norms, to which Praxis adds it")
    if changed_scales:
        lines.append(
            f"{changed_scales:,} of these scales differ in the last bits when 1 is added again"
        )
    if cast.rounded:
        lines.append(f"{cast.rounded:,} values were rounded to {cast.dtype.name}")
    else:
        lines.append("all other values are unchanged")
    return lines


def _write_card(
    args: argparse.Namespace, model: Any, dtype_name: str, changes: Sequence[str], part: Path
) -> None:
    """Write the model card.

    Args:
      args: The command line.
      model: The model that was converted.
      dtype_name: The type of the numbers.
      changes: What `_describe_changes` returned.
      part: The folder to write into.
    """
    from rosetta.convert import gpt, model_card

    architecture = model.architecture
    facts = {
        "layers": f"{architecture.layers}",
        "sizes": (
            f"{architecture.dim} features, {architecture.heads} heads of {architecture.head_dim}, "
            f"MLP of {architecture.hidden}, {architecture.vocab:,} rows of the vocabulary, "
            f"{architecture.positions:,} positions"
        ),
        "parameters": f"{gpt.count_parameters(architecture):,}, {dtype_name}",
        "made from": model.name,
        "converted by": model_card.describe_converter(),
    }
    origin = model_card.Origin("a checkpoint of Pax", "rosetta convert gpt", "text-generation")
    text = model_card.render_card(
        args.out.resolve().name, origin, architecture.layout, facts, changes
    )
    (part / "README.md").write_text(text, encoding="utf-8")
