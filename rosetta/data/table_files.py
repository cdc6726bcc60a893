"""Tables: files whose rows all have the same columns, which are known before a row is read.

A column that the user names and that is not there is an error of the whole file, and not of each of
its rows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.data import arrow_tables, data_spec, delimited_tables, json_lines, saved_datasets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.data.data_spec import Spec
    from rosetta.data.table_rows import Row

KINDS = (*delimited_tables.SEPARATORS, *arrow_tables.KINDS)
# What a table that is not separated as its kind says has in its header instead.
_SEPARATOR_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_MAX_NAMED_COLUMNS = 8


def list_tables(spec: Spec, split: str) -> tuple[tuple[str, str], ...]:
    """Return the path and the kind of each table of a source; () if the source has no tables.

    Args:
        spec: The source.
        split: The split of a saved Hugging Face set whose spec names none.

    Raises:
        UserError: A file is missing.
    """
    if spec.kind in KINDS:
        return tuple((path, spec.kind) for path in data_spec.find_files(spec))
    if saved_datasets.is_saved(spec):
        return tuple((path, "arrow") for path in saved_datasets.find_files(spec, split))
    return ()


def read_columns(path: str, kind: str) -> tuple[str, ...]:
    """Return the names of a table's columns.

    Args:
        path: The file.
        kind: One of KINDS.

    Raises:
        UserError: The file is not such a table.
    """
    if kind in arrow_tables.KINDS:
        return arrow_tables.read_columns(path, kind)
    return delimited_tables.read_columns(path, kind)


def read_rows(path: str, kind: str, names: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a table, in the order of the file.

    Args:
        path: The file.
        kind: One of KINDS.
        names: Columns that the table has to have, with text. Of Parquet and Arrow files, only these
            are read, or all if there are none.

    Raises:
        UserError: The file is not such a table, or a column is missing.
    """
    check_columns(path, kind, names)
    if kind in arrow_tables.KINDS:
        return arrow_tables.read_rows(path, kind, names)
    return delimited_tables.read_rows(path, kind)


def check_columns(path: str, kind: str, names: Sequence[str]) -> None:
    """Check that a table has columns of these names.

    Raises:
        UserError: The file is not a table, or a column is missing.
    """
    columns = read_columns(path, kind)
    missing = [name for name in names if name not in columns]
    if not missing:
        return
    if kind in delimited_tables.SEPARATORS and len(columns) == 1:
        _check_separator(path, kind, columns[0])
    listed = ", ".join(columns[:_MAX_NAMED_COLUMNS])
    if len(columns) > _MAX_NAMED_COLUMNS:
        listed += ", and more"
    raise UserError(
        f"the table has no column {missing[0]!r} (it has: {listed})",
        path,
        json_lines.describe_field_option(len(names)),
        kind=MISSING,
        value=missing[0],
    )


def _check_separator(path: str, kind: str, header: str) -> None:
    """Raise UserError if the only column of a header has the separators of another kind in it."""
    separator = delimited_tables.SEPARATORS[kind]
    for other, name in _SEPARATOR_NAMES.items():
        if other == separator or other not in header:
            continue
        remedy = f"separate them by {_SEPARATOR_NAMES[separator]}"
        if other in delimited_tables.SEPARATORS.values():
            other_kind = next(
                key for key, mark in delimited_tables.SEPARATORS.items() if mark == other
            )
            remedy = f"write {other_kind}:{os.path.basename(path)}"
        raise UserError(
            f"the columns are separated by {name}, and not by {_SEPARATOR_NAMES[separator]}",
            f"{path}, line 1",
            remedy,
            kind=INVALID,
            value=other,
        )
