"""Inputs for inference as plain text: a file or standard input with an input on each line.

T5X reads records. So the lines become JSON lines in the folder of the answers, each with its number
as `idx`, which the answers then have too.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import is_address

VARIABLE = "INPUTS"
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class InputLines:
    """The lines of a text as records.

    Attributes:
      file: the file for the records.
      records: JSON lines with `idx`, from 1, and the line.
    """

    file: Path
    records: str

    @property
    def data(self) -> str:
        """The file as DATA names it."""
        return f"jsonl:{self.file}"

    def write(self) -> None:
        """Write the records into the file, whose folder may not exist yet."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, self.records, None)


def read_lines(source: str, folder: str, field: str = "inputs") -> InputLines:
    """Return the lines of a text as records for a file in the folder of the answers.

    Other lines get another file, so that a folder never has the answers of other lines.

    Args:
      source: a file, or "-" for standard input.
      folder: the folder of the answers.
      field: the field of the records that has the line.

    Raises:
      UserError: the text cannot be read, or has no line, or the folder is in an object store.
    """
    if is_address(folder):
        raise UserError(
            "lines of text are kept beside the answers, and data is not read from an object store",
            f"OUTPUT_DIR={folder}",
            "name a folder of this machine",
            kind=UNSUPPORTED,
        )
    where = f"{VARIABLE}={source}"
    try:
        lines = [line.decode("utf-8") for line in _read_bytes(source, where).splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(
            f"not UTF-8 text ({error.reason})", where, "convert it with iconv", kind=INVALID
        ) from None
    if not lines:
        raise UserError("there is no input", where, "put an input on each line", kind=MISSING)
    numbered = [{"idx": number, field: line} for number, line in enumerate(lines, 1)]
    records = "".join(f"{json.dumps(record)}\n" for record in numbered)
    digest = hashlib.sha256(records.encode()).hexdigest()[:12]
    return InputLines(Path(folder, f"inputs-{digest}.jsonl"), records)


def _read_bytes(source: str, where: str) -> bytes:
    """Return the bytes of a file or of standard input; UserError if they cannot be read."""
    if source == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise UserError(
            f"the file cannot be read ({error.strerror})",
            where,
            "name a file with an input on each line, or - for standard input",
            kind=MISSING if isinstance(error, FileNotFoundError) else DENIED,
        ) from None
