"""The data sets of Pax's scripts: what download_{the_pile,lambada,boolq}.py do.

Into TFDS_DATA_DIR, where the scripts look for them.
"""

from __future__ import annotations

import io
import json
import os
import sys
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import exit_status, run_folders
from rosetta.core.errors import DAMAGED, MISSING, UNKNOWN, UNREACHABLE, UserError
from rosetta.core.value_parsing import parse_path
from rosetta.data import data_spec, tfds

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FOLDER = "/opt/paxml/datasets"  # where the image's documentation mounts them
ALTERNATIVES = (
    "train on text of your own (DATA=text:/data/*.txt or jsonl:/data/*.jsonl), on a prepared "
    "C4 (DATA=tfds:c4/en), on a Hugging Face set such as"
    " DATA=hf:allenai/c4/en, streamed, or on synthetic data (CONFIG=Synthetic126M)"
)


@dataclass(frozen=True)
class DownloadableDataset:
    """A data set that can be fetched.

    Attributes:
      prepared: it as TensorFlow Datasets prepares it, which an earlier download has left, and a
        split of it.
      url: of its JSON lines, or of a zip file with them.
      files: our file -> (the name in the zip file, "" without one; its lines; the fields of each).
    """

    prepared: str
    split: str
    url: str
    files: dict[str, tuple[str, int, tuple[str, ...]]]


_BOOLQ = ("question", "passage", "label")
DATASETS = {
    # Both addresses are those that upstream's and TensorFlow Datasets' own builders fetch.
    "lambada": DownloadableDataset(
        "tfds:my_lambada/lm",
        "test",
        "https://raw.githubusercontent.com/cybertronai/bflm/master/lambada_test.jsonl",
        {"lambada/test.jsonl": ("", 5153, ("text",))},
    ),
    "boolq": DownloadableDataset(
        "tfds:super_glue/boolq",
        "train",
        "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/BoolQ.zip",
        {
            "boolq/train.jsonl": ("BoolQ/train.jsonl", 9427, _BOOLQ),
            "boolq/validation.jsonl": ("BoolQ/val.jsonl", 3270, _BOOLQ),
        },
    ),
}


def find_downloaded(name: str, root: str) -> dict[str, str]:
    """Return DATA and EVAL_DATA for a data set that download_NAME.py has left in a folder; nothing
    where there is none, or TFDS's copy.
    """
    source = DATASETS[name]
    if Path(root, *source.prepared.removeprefix("tfds:").split("/")).is_dir() or not all(
        Path(root, file).is_file() for file in source.files
    ):
        return {}
    files = [f"jsonl:{root}/{file}" for file in source.files]
    return {"DATA": files[0], "EVAL_DATA": files[-1]}


def download_dataset(name: str, root: str) -> str:
    """Fetch a data set into a folder, unless it is there; return what to say.

    Raises:
      UserError: it cannot be had, or is not what it should be. Nothing half-written is left.
    """
    source = DATASETS[name]
    os.environ["TFDS_DATA_DIR"] = root
    if Path(root, *source.prepared.removeprefix("tfds:").split("/")).is_dir():
        there = tfds.check(data_spec.parse_spec(source.prepared), source.split)
        return (
            f"{there['folder']}: {there['examples']:,} examples in {source.split}: it is there, "
            "nothing to download"
        )
    if find_downloaded(name, root):
        return f"{root}/{name}: it is there, nothing to download"
    run_folders.check_folder_writable(parse_path("TFDS_DATA_DIR", root))
    data = _fetch_url(source.url)
    texts = {
        file: _extract_text(data, inside, source.url)
        for file, (inside, _, _) in source.files.items()
    }
    for file, (_, lines, fields) in source.files.items():
        _check_text(texts[file], lines, fields, source.url)
    for file, text in texts.items():
        run_folders.write_file(Path(root, file), text)
    counts = [f"{Path(file).name} {lines:,}" for file, (_, lines, _) in source.files.items()]
    return f"{root}/{name}: {', '.join(counts)} examples, from {source.url}"


def _fetch_url(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (one of ours)
            return bytes(answer.read())
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"it cannot be fetched ({reason})",
            url,
            (
                "give this machine internet (HTTPS_PROXY), or fetch it elsewhere and set "
                "DATA=jsonl:FILE"
            ),
            kind=UNREACHABLE,
        ) from None


def _extract_text(data: bytes, inside: str, url: str) -> str:
    try:
        if not inside:
            return data.decode("utf-8")
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            return opened.read(inside).decode("utf-8")
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise UserError(
            f"what was fetched is not the data set ({type(error).__name__})",
            url,
            "try again, or fetch it elsewhere and set DATA=jsonl:FILE",
            kind=DAMAGED,
        ) from None


def _check_text(text: str, lines: int, fields: tuple[str, ...], url: str) -> None:
    rows = text.splitlines()
    try:
        whole = len(rows) == lines and all(
            field in json.loads(row) for row in (rows[0], rows[-1]) for field in fields
        )
    except (ValueError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            (
                f"what was fetched is not the data set: {len(rows)} lines, not {lines} with "
                f"{', '.join(fields)}"
            ),
            url,
            "try again, or fetch it elsewhere and set DATA=jsonl:FILE",
            kind=DAMAGED,
            value=len(rows),
        )


def check_pile(root: str) -> str:
    """Look over a copy of the Pile; return what to say.

    Raises:
      UserError: there is none, or it is damaged; it cannot be fetched again.
    """
    folder = Path(root, "the_pile")
    if not folder.is_dir():
        raise UserError(
            "the Pile has been offline since October 2023 and there is no copy here",
            str(folder),
            f"set TFDS_DATA_DIR to a copy prepared earlier, or {ALTERNATIVES}",
            kind=MISSING,
        )
    os.environ["TFDS_DATA_DIR"] = root
    there = tfds.check(data_spec.parse_spec("tfds:the_pile/lm"), "train")
    return (
        f"{there['folder']}: {there['files']} files, {there['bytes']:,} bytes, "
        f"{there['examples']:,} examples: complete as far as sizes and heads tell. Nothing to "
        "download"
    )


_HELP = """\
usage: download_{name}.py [--help]

{summary}

The variable TFDS_DATA_DIR of the environment names the folder (default: {home}).
"""
_SUMMARIES = {
    "lambada": "Download LAMBADA as JSON lines, unless the folder has it.",
    "boolq": "Download BoolQ as JSON lines, unless the folder has it.",
    "the_pile": "Check a copy of the Pile, which can no longer be downloaded.",
}


def main(name: str, words: Sequence[str] | None = None) -> int:
    """Do what download_NAME.py does; return the exit status.

    Args:
      name: The data set.
      words: The words of the command line (default: those of this process).
    """
    root = os.environ.get("TFDS_DATA_DIR") or DEFAULT_FOLDER
    words = sys.argv[1:] if words is None else words
    try:
        if words and words[0] in ("-h", "--help"):
            exit_status.print_result(
                _HELP.format(name=name, summary=_SUMMARIES[name], home=DEFAULT_FOLDER).rstrip()
            )
            return exit_status.SUCCESS
        if words:
            raise UserError(
                f"there is no argument {words[0]!r}",
                f"download_{name}.py",
                "set TFDS_DATA_DIR to the folder; see --help",
                kind=UNKNOWN,
                value=words[0],
            )
        print(check_pile(root) if name == "the_pile" else download_dataset(name, root))
    except UserError as error:
        print(f"download_{name}: {error}", file=sys.stderr)
        return exit_status.USER_ERROR
    return exit_status.SUCCESS
