"""The command `rosetta new t5x NAME`: write the files that pretrain a T5 model on your own text.

They are the gin file of the model, the tasks, the gin file of the run, and a script that starts it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import option_types, path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, EXISTS, INVALID, MISSING, UNKNOWN, UNSUPPORTED, UserError
from rosetta.core.value_parsing import is_address, parse_path

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from rosetta.t5x.run.gin_reader import Configuration

_T5X_FOLDER = Path(__file__).parents[1] / "t5x"
_FAMILIES = ("t5_1_1", "mt5", "umt5", "byt5", "t5_1_0")
# Template -> the end of the file's name, after NAME_SIZE.
_FILES = {
    "model.gin.txt": ".gin",
    "tasks.py.txt": "_tasks.py",
    "pretrain.gin.txt": "_pretrain.gin",
    "train.sh.txt": ".sh",
}


def add_parsers(commands: Any, common: Any) -> None:
    """Add the command's parser."""
    new = commands.add_parser("new", parents=[common])
    kinds = new.add_subparsers(dest="kind", metavar="KIND")
    t5x = kinds.add_parser(
        "t5x",
        help="write four files that pretrain a T5 model on your own text and vocabulary",
    )
    t5x.add_argument(
        "name",
        metavar="NAME",
        help="the name of the model, such as ro_t5x; the files are called NAME_SIZE...",
    )
    t5x.add_argument(
        "--size", default="base", help="small, base, large, xl, xxl or tiny (default: base)"
    )
    t5x.add_argument(
        "--vocab",
        metavar="FILE",
        help=(
            "a SentencePiece model, hf:OWNER/NAME, a folder of that layout, or byte (default: the "
            "vocabulary of the model of Hugging Face that --from names)"
        ),
    )
    t5x.add_argument(
        "--data",
        required=True,
        metavar="SPEC",
        help=(
            "the training data: text:GLOB, jsonl:GLOB, hf:OWNER/NAME, ... "
            "(docs/reference/data-sources.md)"
        ),
    )
    t5x.add_argument("--eval-data", metavar="SPEC", help="other data, for the loss in evaluation")
    t5x.add_argument(
        "--family",
        choices=_FAMILIES,
        help="the family of the model (default: t5_1_1; with --from: mt5)",
    )
    t5x.add_argument(
        "--from",
        dest="checkpoint",
        metavar="CHECKPOINT",
        help=(
            "weights to start from, such as those of mT5: a checkpoint of T5X, hf:OWNER/NAME, or a "
            "folder of that layout, which is converted; --vocab is then their vocabulary"
        ),
    )
    t5x.add_argument(
        "--inputs",
        type=option_types.parse_count,
        default=512,
        metavar="TOKENS",
        help="tokens of an input (default: 512)",
    )
    t5x.add_argument(
        "--targets",
        type=option_types.parse_count,
        default=256,
        metavar="TOKENS",
        help="tokens of a target (default: 256)",
    )
    t5x.add_argument(
        "--steps",
        type=option_types.parse_count,
        default=2_000_000,
        help="the step at which training ends (default: 2000000)",
    )
    t5x.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder for the files (default: the current one)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta new`; return its result and the text to print."""
    paths = write_files(args)
    lines = [f"wrote {path}" for path in paths]
    lines.append(f"start it with: bash {paths[-1]}")
    return {"files": [str(path) for path in paths]}, "\n".join(lines)


RUN: Mapping[str, Callable[[argparse.Namespace], tuple[dict[str, Any], str]]] = {"new": run}


def list_sizes(family: str) -> list[str]:
    """Return the sizes of a family, by its gin files."""
    return sorted(path.stem for path in (_T5X_FOLDER / "gin" / family).glob("*.gin"))


def read_vocab_size(family: str) -> int | None:
    """Return the rows of the embedding that the gin file of a family sets."""
    from rosetta.t5x.run import network_fields

    return network_fields.read_count(_read_family(family), "vocab_size")


def read_extra_ids(family: str) -> int | None:
    """Return the sentinels that a family adds to its vocabulary; None for the usual number."""
    return _read_family(family).integer("EXTRA_IDS")


def _read_family(family: str) -> Configuration:
    """Read the gin file of a family."""
    from rosetta.t5x.run import gin_files, gin_reader

    file = gin_files.ROOT / gin_files.GIN_FOLDER / "families" / f"{family}.gin"
    return gin_reader.read_configuration([file], [gin_files.ROOT])


def _check_checkpoint(text: str) -> str:
    """Return the folder or address of --from; a model of Hugging Face is converted first.

    Raises:
      UserError: The folder does not exist, or the model cannot be fetched or converted.
    """
    from rosetta.launch import hub_inputs

    if is_address(text):
        return text
    text = hub_inputs.resolve_weights("INITIAL_CHECKPOINT_PATH", text, where=f"--from {text}")
    folder = Path(parse_path("--from", text))
    if not folder.is_dir():
        raise UserError(
            "the folder does not exist",
            text,
            "name a checkpoint_N of T5X, or a folder of them",
            kind=MISSING,
        )
    return str(folder)


def _resolve_data(text: str | None) -> str | dict[str, float] | None:
    """Return data with absolute paths, because the script may be started from any folder.

    A mixture is a dictionary source -> rate.
    """
    from rosetta.data import data_spec

    if text is None:
        return None
    rates = {}
    for part in data_spec.parse_parts(text):
        value = part.spec.value
        if part.spec.kind in (*data_spec.FILE_KINDS, "megatron"):
            value = ",".join(_make_absolute(path) for path in value.split(","))
        elif part.spec.kind == "cache" or (part.spec.kind == "hf" and value.startswith(".")):
            value = _make_absolute(value)
        rates[str(dataclasses.replace(part.spec, value=value))] = part.rate
    return next(iter(rates)) if len(rates) == 1 else rates


def _make_absolute(path: str) -> str:
    """Return an absolute path.

    Unlike parse_path, the function keeps links, which may lead elsewhere on another machine.
    """
    return path if is_address(path) else os.path.abspath(os.path.expanduser(path))


def _check_names(args: argparse.Namespace, family: str) -> None:
    """Check NAME, which names a Python module, and --size."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", args.name):
        raise UserError(
            f"{args.name!r} is not a valid name of a Python module",
            "NAME",
            "use letters, digits and underscores, and begin with a letter",
            kind=INVALID,
            value=args.name,
        )
    sizes = list_sizes(family)
    if args.size not in sizes:
        raise UserError(
            f"{family} has no size {args.size!r}",
            "--size",
            f"choose one of: {' '.join(sizes)}",
            kind=UNKNOWN,
            value=args.size,
        )


def _choose_vocabulary(name: str | None, checkpoint: str | None) -> str:
    """Return the vocabulary as the gin file names it, from any folder and for good.

    Args:
      name: The value of --vocab, or None.
      checkpoint: The value of --from, or None.

    Raises:
      UserError: There is no vocabulary, or the model cannot be fetched.
    """
    from rosetta.data import model_hub, tokenizer_folders

    if name is None and checkpoint:
        is_model = model_hub.is_hub_name(checkpoint)
        if is_model or tokenizer_folders.is_tokenizer_folder(checkpoint):
            name = checkpoint
    if name is None:
        raise UserError(
            "there is no vocabulary",
            "--vocab",
            "give a SentencePiece model, hf:OWNER/NAME, or byte",
            kind=MISSING,
        )
    if model_hub.is_hub_name(name):
        where = f"--vocab {name}"
        folder = model_hub.fetch_model(name, where, model_hub.TOKENIZER)
        return f"{model_hub.SCHEME}{model_hub.parse_name(name, where).repository}@{folder.name}"
    return name if name == "byte" or name.startswith("ids:") else os.path.abspath(name)


def _make_template_values(args: argparse.Namespace) -> dict[str, str]:
    """Return the texts that replace @NAME@ and so on in the templates.

    Raises:
      UserError: A value of the command line is not valid, or the vocabulary does not fit.
    """
    from rosetta.data import vocabularies

    vocabulary_name = _choose_vocabulary(args.vocab, args.checkpoint)
    family = args.family or ("mt5" if args.checkpoint else "t5_1_1")
    _check_names(args, family)
    family_extra_ids = read_extra_ids(family)
    vocabulary = vocabularies.load_vocabulary(
        vocabulary_name, family_extra_ids if args.checkpoint else None
    )
    rows = vocabularies.round_up_vocab_size(vocabulary.size)
    family_rows = read_vocab_size(family)
    if not vocabulary.sentinel_count:
        raise UserError(
            "the vocabulary has no sentinels for span corruption",
            vocabulary_name,
            "make it with rosetta vocab train, or leave its extra_id pieces out so that they are "
            "added",
            kind=UNSUPPORTED,
        )
    if args.checkpoint and rows != family_rows:
        raise UserError(
            f"the vocabulary has {vocabulary.size} ids, but {family} has {family_rows}",
            vocabulary_name,
            "give the vocabulary with which the checkpoint was trained, or leave --from out",
            kind=DIFFERS,
            value=vocabulary.size,
        )
    extra_ids = ""
    if family_extra_ids is not None and not args.checkpoint:
        extra_ids = "EXTRA_IDS = None  # the usual number of sentinels, not the family's\n"
    network_import = ""
    vocab_size = ""
    if not args.checkpoint and rows != family_rows:
        network_import = "from rosetta.t5x import network\n"
        vocab_size = (
            f"network.T5Config.vocab_size = {rows}  # {vocabulary.size} ids, rounded up to a "
            "multiple of 128\n"
        )
    if args.checkpoint:
        checkpoint = _check_checkpoint(args.checkpoint)
        start = f"INITIAL_CHECKPOINT_PATH = {checkpoint!r}  # its steps count"
    else:
        start = "SCALE_ATTN_LOGITS = False  # as T5 with Adafactor was trained"
    return {
        "NAME": f"{args.name}_{args.size}",
        "FAMILY": family,
        "SIZE": args.size,
        "VOCAB": repr(vocabulary_name),
        "EXTRA_IDS": extra_ids,
        "NETWORK_IMPORT": network_import,
        "VOCAB_SIZE": vocab_size,
        "DATA": repr(_resolve_data(args.data)),
        "EVAL_DATA": repr(_resolve_data(args.eval_data)),
        "INPUTS": str(args.inputs),
        "TARGETS": str(args.targets),
        "STEPS": f"{args.steps:_}",
        "SPAN": "20.0" if family == "byt5" else "3.0",
        "START": start,
    }


def _fill_template(template: str, values: dict[str, str]) -> str:
    """Return the text of a template with its @NAME@ replaced."""
    text = (_T5X_FOLDER / "templates" / template).read_text()
    return re.sub(r"@(" + "|".join(values) + r")@", lambda match: values[match[1]], text)


def write_files(args: argparse.Namespace) -> list[Path]:
    """Write the files, all of them or none; return their paths.

    They are NAME_SIZE.gin, NAME_SIZE_tasks.py, NAME_SIZE_pretrain.gin and NAME_SIZE.sh.

    Raises:
      UserError: A value is not valid, the folder cannot be written, or a file exists already.
    """
    values = _make_template_values(args)
    texts: dict[Path, str] = {}
    for template, ending in _FILES.items():
        text = _fill_template(template, values)
        if ending.endswith(".gin"):
            # Values that are left out leave empty lines.
            text = re.sub(r"\n{3,}", "\n\n", text)
        texts[args.out / f"{values['NAME']}{ending}"] = text
    for path in texts:
        if path.exists():
            raise UserError(
                "the file exists already",
                str(path),
                "choose another NAME or --out, or remove the file",
                kind=EXISTS,
            )
    path_checks.check_local_folder_writable(str(args.out))
    args.out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for path, text in texts.items():
            written.append(path)
            write_atomic(path, text, 0o755 if path.suffix == ".sh" else 0o644)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return list(texts)
