"""ArrayRecord files of tf.train.Example records, read with the package array_record."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, MISSING, UserError
from rosetta.data import reading_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORDS_PER_READ = 1024


def open_reader(path: str) -> Any:
    """Return an ArrayRecordReader of a file that has records.

    Raises:
        UserError: The package is missing, or the file has no record that can be read.
    """
    try:
        module = importlib.import_module("array_record.python.array_record_module")
    except ImportError:
        raise UserError(
            "reading this file needs the package array_record",
            path,
            "pip install array_record",
            kind=MISSING,
            value="array_record",
        ) from None
    reader = module.ArrayRecordReader(path)
    # The package takes a file that is cut short or of another kind for one without records.
    if not reader.ok() or not reader.num_records():
        raise UserError(
            "the file has no record: not an ArrayRecord file, or cut short",
            path,
            "copy it again, or name ArrayRecord files only",
            kind=DAMAGED,
        )
    return reader


def read_records(path: str) -> Iterator[bytes]:
    """Yield the records of a file, in the order of the file.

    Raises:
        UserError: See open_reader, or the file is damaged.
    """
    reader = open_reader(path)
    count = reader.num_records()
    try:
        for start in range(0, count, _RECORDS_PER_READ):
            end = min(start + _RECORDS_PER_READ, count)
            yield from reader.read(start, end)
            reading_progress.report_part(path, end, count)
    except (RuntimeError, IndexError, ValueError) as error:
        reason = str(error).splitlines()[0][:160]
        raise UserError(
            f"the file is damaged: {reason}", path, "copy it again", kind=DAMAGED
        ) from None
    finally:
        reader.close()
