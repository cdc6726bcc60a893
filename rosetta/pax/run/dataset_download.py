"""Download the data sets that Pax's scripts use.

download_lambada.py and download_boolq.py write a data set as JSON lines into the folder
TFDS_DATA_DIR, where the scripts look for it. The Pile can no longer be downloaded, so
download_the_pile.py only checks whether that folder has a complete copy.
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
from typing import TYPE_CHECKING, NamedTuple

from rosetta.core import exit_status, run_folders
from rosetta.core.errors import DAMAGED, MISSING, UNKNOWN, UNREACHABLE, UserError
from rosetta.core.value_parsing import parse_path
from rosetta.data import data_spec, tfds

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_FOLDER = "/opt/paxml/datasets"  # where the documentation of the image mounts data sets
ALTERNATIVES = (
    "train on text of your own (DATA=text:/data/*.txt or jsonl:/data/*.jsonl), "
    "on a prepared C4 (DATA=tfds:c4/en), "
    "on a streamed Hugging Face set (DATA=hf:allenai/c4/en), "
    "or on synthetic data (CONFIG=Synthetic126M)"
)
_USE_A_FILE = "download the data set elsewhere and set DATA=jsonl:FILE"


class JsonLinesFile(NamedTuple):
    """What a file of a data set must hold.

    Attributes:
      member: The name of the file in the downloaded zip file; "" if the download is not a zip file.
      lines: The number of lines.
      fields: The fields of each line.
    """

    member: str
    lines: int
    fields: tuple[str, ...]


@dataclass(frozen=True)
class DownloadableDataset:
    """A data set that can be downloaded.

    Attributes:
      prepared: The spec of the data set as TensorFlow Datasets prepares it. An earlier
        version of the download scripts may have left this form in the folder.
      split: The split of the prepared data set to check.
      url: The address of the JSON lines, or of a zip file with them.
      files: The files to write, by their paths in the folder.
    """

    prepared: str
    split: str
    url: str
    files: dict[str, JsonLinesFile]


_BOOLQ_FIELDS = ("question", "passage", "label")
DATASETS = {
    # Upstream and TensorFlow Datasets use the same two addresses.
    "lambada": DownloadableDataset(
        "tfds:my_lambada/lm",
        "test",
        "https://raw.githubusercontent.com/cybertronai/bflm/master/lambada_test.jsonl",
        {"lambada/test.jsonl": JsonLinesFile("", 5153, ("text",))},
    ),
    "boolq": DownloadableDataset(
        "tfds:super_glue/boolq",
        "train",
        "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/BoolQ.zip",
        {
            "boolq/train.jsonl": JsonLinesFile("BoolQ/train.jsonl", 9427, _BOOLQ_FIELDS),
            "boolq/validation.jsonl": JsonLinesFile("BoolQ/val.jsonl", 3270, _BOOLQ_FIELDS),
        },
    ),
}


def _has_prepared_set(dataset: DownloadableDataset, root: str) -> bool:
    """Return whether a folder has the data set as TensorFlow Datasets prepares it."""
    return Path(root, *dataset.prepared.removeprefix("tfds:").split("/")).is_dir()


def find_downloaded_files(name: str, root: str) -> dict[str, str]:
    """Return DATA and EVAL_DATA for the files that download_NAME.py has written to a folder.

    The result is empty if the files are missing. It is also empty if TensorFlow Datasets has
    prepared the data set there: the experiments read that form without DATA.

    Args:
      name: "lambada" or "boolq".
      root: The folder, TFDS_DATA_DIR.
    """
    dataset = DATASETS[name]
    has_files = all(Path(root, file).is_file() for file in dataset.files)
    if _has_prepared_set(dataset, root) or not has_files:
        return {}
    sources = [f"jsonl:{root}/{file}" for file in dataset.files]
    return {"DATA": sources[0], "EVAL_DATA": sources[-1]}


def download_dataset(name: str, root: str) -> str:
    """Download a data set into a folder, unless the folder has it.

    Args:
      name: "lambada" or "boolq".
      root: The folder, TFDS_DATA_DIR.

    Returns:
      A line about the data set in the folder.

    Raises:
      UserError: The download failed, or its content is not the data set. No file is left then.
    """
    dataset = DATASETS[name]
    os.environ["TFDS_DATA_DIR"] = root
    if _has_prepared_set(dataset, root):
        copy = tfds.check(data_spec.parse_spec(dataset.prepared), dataset.split)
        return (
            f"{copy['folder']}: {copy['examples']:,} examples in {dataset.split}: the data set is "
            "there, nothing to download"
        )
    if find_downloaded_files(name, root):
        return f"{root}/{name}: the data set is there, nothing to download"
    run_folders.check_folder_writable(parse_path("TFDS_DATA_DIR", root))
    content = _fetch_url(dataset.url)
    texts = {}
    for path, file in dataset.files.items():
        texts[path] = _extract_text(content, file.member, dataset.url)
        _check_text(texts[path], file, dataset.url)
    for path, text in texts.items():
        run_folders.write_file(Path(root, path), text)
    counts = [f"{Path(path).name} {file.lines:,}" for path, file in dataset.files.items()]
    return f"{root}/{name}: {', '.join(counts)} examples, from {dataset.url}"


def _fetch_url(url: str) -> bytes:
    """Return the content of an address.

    Raises:
      UserError: The address cannot be reached.
    """
    try:
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310 (a url of DATASETS)
            return bytes(response.read())
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"the data set cannot be downloaded ({reason})",
            url,
            f"check the network of this machine (HTTPS_PROXY), or {_USE_A_FILE}",
            kind=UNREACHABLE,
        ) from None


def _extract_text(content: bytes, member: str, url: str) -> str:
    """Return the text of a download, or of a member of a downloaded zip file.

    Raises:
      UserError: The download is not a zip file with this member, or not UTF-8.
    """
    try:
        if not member:
            return content.decode("utf-8")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(member).decode("utf-8")
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise UserError(
            f"the downloaded file is not the data set ({type(error).__name__})",
            url,
            f"try again, or {_USE_A_FILE}",
            kind=DAMAGED,
        ) from None


def _check_text(text: str, file: JsonLinesFile, url: str) -> None:
    """Check the number of lines, and the fields of the first and the last line.

    Raises:
      UserError: The number or the fields differ from what the data set has.
    """
    lines = list(io.StringIO(text))  # splitlines also breaks at U+2028, which JSON may hold
    is_complete = (
        len(lines) == file.lines
        and _has_fields(lines[0], file.fields)
        and _has_fields(lines[-1], file.fields)
    )
    if not is_complete:
        fields = ", ".join(file.fields)
        raise UserError(
            f"the downloaded file is not the data set: it has {len(lines)} lines, and "
            f"{file.lines} lines with the fields {fields} are expected",
            url,
            f"try again, or {_USE_A_FILE}",
            kind=DAMAGED,
            value=len(lines),
        )


def _has_fields(line: str, fields: Sequence[str]) -> bool:
    """Return whether a line is a JSON object with these fields."""
    try:
        record = json.loads(line)
        return all(field in record for field in fields)
    except (ValueError, TypeError):
        return False


def check_pile(root: str) -> str:
    """Check a copy of the Pile.

    Args:
      root: The folder that contains the folder `the_pile`.

    Returns:
      A line about the copy.

    Raises:
      UserError: There is no copy, or the copy is damaged.
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
    copy = tfds.check(data_spec.parse_spec("tfds:the_pile/lm"), "train")
    return (
        f"{copy['folder']}: {copy['files']} files, {copy['bytes']:,} bytes, "
        f"{copy['examples']:,} examples. The sizes and the beginnings of the files are "
        "correct; nothing to download"
    )


_HELP = """\
usage: download_{name}.py [--help]

{summary}

The variable TFDS_DATA_DIR of the environment names the folder (default: {default}).
"""
_SUMMARIES = {
    "lambada": "Download LAMBADA as JSON lines, unless the folder has it.",
    "boolq": "Download BoolQ as JSON lines, unless the folder has it.",
    "the_pile": "Check a copy of the Pile, which can no longer be downloaded.",
}


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run download_NAME.py and return the exit status.

    Args:
      name: "lambada", "boolq" or "the_pile".
      arguments: The arguments of the command line (default: those of this process).
    """
    root = os.environ.get("TFDS_DATA_DIR") or DEFAULT_FOLDER
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in ("-h", "--help"):
            text = _HELP.format(name=name, summary=_SUMMARIES[name], default=DEFAULT_FOLDER)
            exit_status.print_result(text.rstrip())
            return exit_status.SUCCESS
        if arguments:
            raise UserError(
                f"there is no argument {arguments[0]!r}",
                f"download_{name}.py",
                "set TFDS_DATA_DIR to the folder; see --help",
                kind=UNKNOWN,
                value=arguments[0],
            )
        line = check_pile(root) if name == "the_pile" else download_dataset(name, root)
        exit_status.print_result(line)
    except UserError as error:
        print(f"download_{name}: {error}", file=sys.stderr)
        return exit_status.USER_ERROR
    return exit_status.SUCCESS
