"""Parquet files, and the Arrow files of saved Hugging Face sets, read with pyarrow."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, INVALID, MISSING, UserError
from rosetta.data import bad_records, json_lines, reading_progress
from rosetta.data.table_rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("parquet", "arrow")
_ROWS_PER_BATCH = 1024


def import_pyarrow(path: str) -> Any:
    """Return pyarrow.

    Args:
        path: The file to read, for the error.

    Raises:
        UserError: The package is not in this environment.
    """
    try:
        for module in ("pyarrow.ipc", "pyarrow.parquet"):
            importlib.import_module(module)
        return importlib.import_module("pyarrow")
    except ImportError:
        raise UserError(
            "reading this file needs the package pyarrow",
            path,
            "pip install pyarrow",
            kind=MISSING,
            value="pyarrow",
        ) from None


def read_columns(path: str, kind: str) -> tuple[str, ...]:
    """Return the names of a file's columns.

    Args:
        path: The file.
        kind: One of KINDS.

    Raises:
        UserError: pyarrow is missing, or the file is not of the kind.
    """
    with _open_table(path, kind) as table:
        return tuple(table.schema_arrow.names if kind == "parquet" else table.schema.names)


def read_rows(path: str, kind: str, names: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file, in the order of the file.

    Args:
        path: The file.
        kind: One of KINDS.
        names: The columns to read, which have to be text; none for all columns of any type.

    Raises:
        UserError: A column does not have text, or the file is damaged.
    """
    number = 0
    with _open_table(path, kind) as table:
        schema = table.schema_arrow if kind == "parquet" else table.schema
        for name in names:
            _check_text_column(path, schema, name)
        columns = list(names) or list(schema.names)
        if kind == "parquet":
            batches = table.iter_batches(batch_size=_ROWS_PER_BATCH, columns=columns)
        else:
            batches = (batch.select(columns) for batch in table)
        for batch in batches:
            values = [_list_values(column, path) for column in batch.columns]
            for fields in zip(*values, strict=True):
                number += 1
                yield Row(f"row {number:,}", dict(zip(columns, fields, strict=True)), None)
            if kind == "parquet":
                reading_progress.report_part(path, number, table.metadata.num_rows)
    reading_progress.report_part(path, 1, 1)


@contextlib.contextmanager
def _open_table(path: str, kind: str) -> Iterator[Any]:
    """Yield a pyarrow.parquet.ParquetFile, or a pyarrow.RecordBatchStreamReader.

    Raises:
        UserError: The file is damaged. The error can be raised while the caller reads.
    """
    pyarrow = import_pyarrow(path)
    with contextlib.ExitStack() as stack:
        try:
            if kind == "parquet":
                yield stack.enter_context(pyarrow.parquet.ParquetFile(path, memory_map=True))
            else:
                file = stack.enter_context(pyarrow.memory_map(path))
                yield stack.enter_context(pyarrow.ipc.open_stream(file))
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            names = {"parquet": "a Parquet file", "arrow": "a file of Arrow's stream format"}
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise UserError(
                f"not {names[kind]}, or damaged: {reason[:160]}",
                path,
                "copy it again, or name files of this kind only",
                kind=DAMAGED,
            ) from None


def _check_text_column(path: str, schema: Any, name: str) -> None:
    """Raise UserError if a column does not have text."""
    types = import_pyarrow(path).types
    column_type = schema.field(name).type
    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(check(column_type) for check in is_text):
        raise UserError(
            f"the column {name!r} is {column_type}, not text",
            path,
            json_lines.describe_field_option(),
            kind=INVALID,
            value=str(column_type),
        )


def _list_values(column: Any, path: str) -> list[Any]:
    """Return the values of a column. In text that is not UTF-8, invalid bytes become U+FFFD."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        pyarrow = import_pyarrow(path)
        bodies = column.cast(pyarrow.binary()).to_pylist()
        values = [body if body is None else bad_records.decode_text(body, path) for body in bodies]
    return values
