"""Tables of text in a folder: .tsv without quoting, .csv with it, as is usual, and no row lost."""

from __future__ import annotations

import csv
import functools
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rosetta.core.errors import CONFLICT, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPRESSED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


def choose_read_options(builder: Any) -> dict[str, Any]:
    """Return the options that the datasets package shall read a folder with; nothing where it reads
    no tables there.

    Args:
      builder: what datasets.load_dataset_builder returns for the folder. It knows which of the
        files are read.

    Raises:
      UserError: see check_files.
    """
    if not type(builder).__module__.startswith("datasets.packaged_modules.csv"):
        return {}
    paths = [str(path) for files in builder.config.data_files.values() for path in files]
    return check_tables(tuple(paths), builder.config.sep)


@functools.lru_cache
def check_tables(paths: tuple[str, ...], separator: str) -> dict[str, Any]:
    """Check that each row of the tables is one record, and return the options to read them with.

    Every field is read as text: no word means a missing value, and digits are not a number.

    Raises:
      UserError: a quote in a .csv file swallows rows; a row is wider or narrower than the header;
        there are both kinds of tables.
    """
    endings = {_find_ending(path) for path in paths}
    if len(endings) > 1:
        raise UserError(
            "the folder has .tsv and .csv files, which are read in different ways",
            str(Path(paths[0]).parent),
            "put them into two folders",
            kind=CONFLICT,
        )
    # A TSV has no quotes (IANA text/tab-separated-values): a quote is a letter like others.
    quoting: Literal[0, 3] = csv.QUOTE_NONE if ".tsv" in endings else csv.QUOTE_MINIMAL
    width = max((_check_rows(path, separator, quoting) for path in paths), default=0)
    # Without index_col=False, pandas takes the first column for an index where rows are wider than
    # the header.
    return {
        "quoting": quoting,
        "index_col": False,
        "na_filter": False,
        "converters": dict.fromkeys(range(width), str),
    }


def _find_ending(path: str) -> str:
    name = Path(path)
    if name.suffix.lower() in COMPRESSED_SUFFIXES:
        name = name.with_suffix("")
    ending = name.suffix.lower()
    if ending not in (".csv", ".tsv"):
        raise UserError(
            "not a .csv or .tsv file, but the folder's tables are read",
            path,
            "unpack it, and keep tables in a folder of their own",
            kind=UNSUPPORTED,
        )
    return ending


def _check_rows(path: str, separator: str, quoting: Literal[0, 3]) -> int:
    """Return how many fields every row of a table has.

    Raises:
      UserError: rows differ; a quote is not closed.
    """
    from rosetta.data import documents

    if len(separator) != 1:
        raise UserError(
            f"the separator {separator!r} is not one character",
            path,
            "separate the fields with a comma, or with a tab in a .tsv file",
            kind=INVALID,
            value=separator,
        )
    width = before = 0
    line = ""

    def read_lines() -> Iterator[str]:
        nonlocal line
        for line in text:  # noqa: UP028 (`yield from` would not keep the line)
            yield line

    csv.field_size_limit(sys.maxsize)
    with (
        documents.open_decompressed(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="") as text,
    ):
        rows = csv.reader(read_lines(), delimiter=separator, quoting=quoting, strict=True)
        try:
            after_return = False
            for row in rows:
                blank = not line.strip(" \t\r\n".replace(separator, ""))  # pandas skips such a line
                width = width or (0 if blank else len(row))
                if not blank and len(row) != width:
                    raise _describe_wrong_width(
                        f"{path}, line {before + 1:,}", len(row), width, quoting
                    )
                if after_return and row and not row[0]:
                    what = (
                        "the line before ends in a carriage return alone, and the empty first "
                        "field would be lost"
                    )
                    raise UserError(
                        what,
                        f"{path}, line {before + 1:,}",
                        "end every line with a line feed (dos2unix -c mac FILE)",
                        kind=INVALID,
                    )
                after_return = line.endswith("\r")
                before = rows.line_num
        except csv.Error as error:
            do = (
                'write the field as "..." and each quote in it twice, or save the table as .tsv, '
                "where quotes are letters"
            )
            raise UserError(
                f"a quote is not closed as CSV wants it ({error}), and rows would be lost",
                f"{path}, line {before + 1:,}",
                do,
                kind=INVALID,
            ) from None
    return width


def _describe_wrong_width(where: str, count: int, width: int, quoting: Literal[0, 3]) -> UserError:
    what = f"the row has {count} fields, and the header has {width}"
    if quoting == csv.QUOTE_NONE:
        return UserError(
            what, where, "give every row as many tabs as the header", kind=INVALID, value=count
        )
    return UserError(
        what,
        where,
        'give every row as many fields as the header; write a field with a comma in it as "..."',
        kind=INVALID,
        value=count,
    )
