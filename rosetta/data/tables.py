"""Tables in a folder of the user: how to read .csv and .tsv files so that no row is lost.

`documents.open_hugging_face` checks them before the datasets package reads them. A .tsv file has
no quoting, and a .csv file has.
"""

from __future__ import annotations

import csv
import functools
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError
from rosetta.data import compressed_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def choose_read_options(builder: Any) -> dict[str, Any]:
    """Return the options with which the datasets package has to read a folder.

    Args:
        builder: What datasets.load_dataset_builder returned for the folder. It knows which of the
            files are read.

    Returns:
        The options; {} if the package reads no tables there.

    Raises:
        UserError: See check_tables.
    """
    if not type(builder).__module__.startswith("datasets.packaged_modules.csv"):
        return {}
    paths: list[str] = []
    for files in builder.config.data_files.values():
        paths += [str(path) for path in files]
    return check_tables(tuple(paths), builder.config.sep)


@functools.lru_cache
def check_tables(paths: tuple[str, ...], separator: str) -> dict[str, Any]:
    """Check that each row of the tables is one record, and return the options to read them with.

    Every field is read as text: no word means a missing value, and digits are not a number.

    Args:
        paths: The files.
        separator: The character between the fields of a row.

    Returns:
        Options of pandas.read_csv.

    Raises:
        UserError: A quote in a .csv file swallows rows, a row is wider or narrower than the header,
            or there are both kinds of tables.
    """
    suffixes = {_find_suffix(path) for path in paths}
    if len(suffixes) > 1:
        raise UserError(
            "the folder has .tsv and .csv files, which are read in different ways",
            str(Path(paths[0]).parent),
            "put them into two folders",
            kind=CONFLICT,
        )
    # A TSV file has no quoting (IANA text/tab-separated-values): a quote is an ordinary character.
    quoting: Literal[0, 3] = csv.QUOTE_NONE if ".tsv" in suffixes else csv.QUOTE_MINIMAL
    width = max((_check_rows(path, separator, quoting) for path in paths), default=0)
    # Without index_col=False, pandas takes the first column for an index if rows are wider than the
    # header.
    return {
        "quoting": quoting,
        "index_col": False,
        "na_filter": False,
        "converters": dict.fromkeys(range(width), str),
    }


def _find_suffix(path: str) -> str:
    """Return ".csv" or ".tsv", also for a compressed file. Raises UserError for another file."""
    name = Path(path)
    if name.suffix.lower() in compressed_files.SUFFIXES:
        name = name.with_suffix("")
    suffix = name.suffix.lower()
    if suffix not in (".csv", ".tsv"):
        raise UserError(
            "not a .csv or .tsv file, but most files of the folder are tables",
            path,
            "unpack it, and keep tables in a folder of their own",
            kind=UNSUPPORTED,
        )
    return suffix


class _LineReader:
    """The lines of a table, and the last one that the csv module has read.

    Attributes:
        last: The line, with its end.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = lines
        self.last = ""

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.last = line
            yield line


def _check_rows(path: str, separator: str, quoting: Literal[0, 3]) -> int:
    """Return the number of fields that every row of a table has.

    Raises:
        UserError: Rows differ, or a quote is not closed.
    """
    if len(separator) != 1:
        raise UserError(
            f"the separator {separator!r} is not one character",
            path,
            "separate the fields with a comma, or with a tab in a .tsv file",
            kind=INVALID,
            value=separator,
        )
    width = 0
    lines_before = 0  # the lines before the current row
    csv.field_size_limit(sys.maxsize)
    with (
        compressed_files.open_decompressed(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text,
    ):
        lines = _LineReader(text)
        rows = csv.reader(iter(lines), delimiter=separator, quoting=quoting, strict=True)
        after_return = False
        try:
            for row in rows:
                place = f"{path}, line {lines_before + 1:,}"
                # pandas skips a line that has nothing but white space, and no separator.
                is_blank = not lines.last.strip(" \t\r\n".replace(separator, ""))
                if not is_blank:
                    width = width or len(row)
                    if len(row) != width:
                        raise _describe_wrong_width(place, len(row), width, quoting)
                if after_return and row and not row[0]:
                    raise UserError(
                        "the line before ends in a carriage return alone, and pandas would lose "
                        "the empty first field",
                        place,
                        "end every line with a line feed (dos2unix -c mac FILE)",
                        kind=INVALID,
                    )
                after_return = lines.last.endswith("\r")
                lines_before = rows.line_num
        except csv.Error as error:
            raise UserError(
                f"a quote is not closed as CSV requires it ({error}), and rows would be lost",
                f"{path}, line {lines_before + 1:,}",
                'write the field as "..." and each quote in it twice, or save the table as .tsv, '
                "where quotes are ordinary characters",
                kind=INVALID,
            ) from None
    return width


def _describe_wrong_width(place: str, count: int, width: int, quoting: Literal[0, 3]) -> UserError:
    """Return the error for a row with another number of fields than the header."""
    if quoting == csv.QUOTE_NONE:
        remedy = "give every row as many tabs as the header"
    else:
        remedy = (
            'give every row as many fields as the header; write a field with a comma in it as "..."'
        )
    return UserError(
        f"the row has {count} fields, and the header has {width}",
        place,
        remedy,
        kind=INVALID,
        value=count,
    )
