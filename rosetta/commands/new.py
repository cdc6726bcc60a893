"""`rosetta new t5x NAME`: the four files of a T5 for one's own language, ready to run."""

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

_T5X_FOLDER = Path(__file__).parents[1] / "t5x"
_FAMILIES = ("t5_1_1", "mt5", "byt5", "t5_1_0")
_FILES = {
    "model.gin.txt": ".gin",
    "tasks.py.txt": "_tasks.py",
    "pretrain.gin.txt": "_pretrain.gin",
    "train.sh.txt": ".sh",
}
_FILE_KINDS = ("text", "jsonl", "tfrecord")  # several, with commas


def add_parsers(commands: Any, common: Any) -> None:
    """Add `new` to the command line."""
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
        "--vocab", required=True, metavar="FILE", help="a SentencePiece model, or byte"
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
        help="weights to start from, such as those of mT5; --vocab is then their vocabulary",
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
    """Write the files; return what `rosetta` prints."""
    written = write_files(args)
    script = written[-1]
    lines = [f"wrote {path}" for path in written]
    return {"files": [str(path) for path in written]}, "\n".join(
        [*lines, f"start it with: bash {script}"]
    )


RUN: Mapping[str, Callable[[argparse.Namespace], tuple[dict[str, Any], str]]] = {"new": run}


def list_sizes(family: str) -> list[str]:
    """Return the sizes a family comes in, by the gin files there are."""
    return sorted(path.stem for path in (_T5X_FOLDER / "gin" / family).glob("*.gin"))


def read_vocab_size(family: str) -> int | None:
    """Return the rows of a family's own embedding, as its gin file says."""
    from rosetta.t5x.run import gin_files, gin_reader, network_fields

    file = gin_files.ROOT / gin_files.GIN_FOLDER / "families" / f"{family}.gin"
    configuration = gin_reader.read_configuration([file], [gin_files.ROOT])
    return network_fields.read_count(configuration, "vocab_size")


def _check_checkpoint(given: str) -> str:
    if is_address(given):
        return given
    folder = Path(parse_path("--from", given))
    if not folder.is_dir():
        raise UserError(
            "there is no such folder",
            given,
            "name a checkpoint_N of T5X, or a folder of them",
            kind=MISSING,
        )
    return str(folder)


def _resolve_data(given: str | None) -> str | dict[str, float] | None:
    """Return a spec, or a mixture, whose files have absolute names: the script may be started from
    anywhere.
    """
    from rosetta.data import data_spec

    if given is None:
        return None
    found = {}
    for part in data_spec.parse_parts(given):
        value = part.spec.value
        if part.spec.kind in _FILE_KINDS:
            value = ",".join(map(_make_absolute, value.split(",")))
        elif part.spec.kind == "cache" or (part.spec.kind == "hf" and value.startswith(".")):
            value = _make_absolute(value)
        found[str(dataclasses.replace(part.spec, value=value))] = part.rate
    return next(iter(found)) if len(found) == 1 else found


def _make_absolute(path: str) -> str:
    """Return an absolute path. Unlike parse_path it keeps links, which other machines may resolve
    otherwise.
    """
    return path if is_address(path) else os.path.abspath(os.path.expanduser(path))


def _make_template_values(args: argparse.Namespace) -> dict[str, str]:
    from rosetta.data import vocabularies

    family = args.family or ("mt5" if args.checkpoint else "t5_1_1")
    name = f"{args.name}_{args.size}"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", args.name):
        raise UserError(
            f"{args.name!r} cannot name a Python module",
            "NAME",
            "use letters, digits and underscores, and begin with a letter",
            kind=INVALID,
            value=args.name,
        )
    if args.size not in list_sizes(family):
        raise UserError(
            f"{family} has no size {args.size!r}",
            "--size",
            f"choose one of: {' '.join(list_sizes(family))}",
            kind=UNKNOWN,
            value=args.size,
        )
    vocab = vocabularies.load_vocabulary(args.vocab)
    own = vocabularies.pad_size(vocab.size)
    if not vocab.sentinel_count:
        raise UserError(
            "it has no sentinels for span corruption",
            args.vocab,
            (
                "make it with rosetta vocab train, or leave its extra_id pieces out so that they "
                "are added"
            ),
            kind=UNSUPPORTED,
        )
    if args.checkpoint and own != read_vocab_size(family):
        raise UserError(
            f"its {vocab.size} ids are not the {read_vocab_size(family)} of {family}",
            args.vocab,
            "give the vocabulary the checkpoint was trained with, or leave --from out",
            kind=DIFFERS,
            value=vocab.size,
        )
    network = not args.checkpoint and own != read_vocab_size(family)
    return {
        "NAME": name,
        "FAMILY": family,
        "SIZE": args.size,
        "VOCAB": repr(args.vocab if args.vocab == "byte" else os.path.abspath(args.vocab)),
        "NETWORK_IMPORT": "from rosetta.t5x import network\n" if network else "",
        "VOCAB_SIZE": (
            f"network.T5Config.vocab_size = {own}  # {vocab.size} ids, rounded up to a multiple "
            "of 128\n"
        )
        if network
        else "",
        "DATA": repr(_resolve_data(args.data)),
        "EVAL_DATA": repr(_resolve_data(args.eval_data)),
        "INPUTS": str(args.inputs),
        "TARGETS": str(args.targets),
        "STEPS": f"{args.steps:_}",
        "SPAN": "20.0" if family == "byt5" else "3.0",
        "START": f"INITIAL_CHECKPOINT_PATH = {_check_checkpoint(args.checkpoint)!r}"
        "  # its steps count"
        if args.checkpoint
        else "SCALE_ATTN_LOGITS = False  # as T5 with Adafactor was trained",
    }


def write_files(args: argparse.Namespace) -> list[Path]:
    """Write NAME_SIZE.gin, NAME_SIZE_tasks.py, NAME_SIZE_pretrain.gin and NAME_SIZE.sh; return
    their paths.

    Raises:
      UserError: a value is wrong, the folder cannot be written to, or one of the files is there
        already.

    All four are written or, whatever happens, none.
    """
    values = _make_template_values(args)
    paths: dict[Path, str] = {}
    for template, ending in _FILES.items():
        text = (_T5X_FOLDER / "templates" / template).read_text()
        text = re.sub(r"@(" + "|".join(values) + r")@", lambda found: values[found[1]], text)
        paths[args.out / f"{values['NAME']}{ending}"] = (
            re.sub(r"\n{3,}", "\n\n", text) if ending.endswith(".gin") else text
        )
    for path in paths:
        if path.exists():
            raise UserError(
                "the file is there already",
                str(path),
                "choose another NAME or --out, or remove it",
                kind=EXISTS,
            )
    path_checks.check_local_folder_writable(str(args.out))
    args.out.mkdir(parents=True, exist_ok=True)
    placed: list[Path] = []
    try:
        for path, text in paths.items():
            placed.append(path)
            write_atomic(path, text, 0o755 if path.suffix == ".sh" else 0o644)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    return list(paths)
