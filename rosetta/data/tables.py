"""Tables of text in a folder: .tsv without quoting, .csv with it, as is usual, and no row lost."""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path
from typing import Any

from rosetta.errors import UserError

OTHERS = (".json", ".jsonl", ".parquet", ".arrow", ".txt", ".ndjson")  # the datasets package decides what such a folder is


def find_tables(folder: str) -> dict[str, list[Path]]:
    """Return the .tsv and the .csv files of a folder; nothing where it holds other data files."""
    tables: dict[str, list[Path]] = {".tsv": [], ".csv": []}
    for path in sorted(Path(folder).rglob("*")):
        ending = path.suffix.lower()
        if ending in OTHERS:
            return {".tsv": [], ".csv": []}
        if ending in tables and path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            tables[ending].append(path)
    return tables


@functools.lru_cache
def check_folder(folder: str) -> dict[str, Any]:
    """Return the options that the datasets package reads a folder's tables with, so that each row of a file is one record.

    Raises:
      UserError: a quote in a .csv file swallows rows; the folder has both kinds of tables.
    """
    tables = find_tables(folder)
    if tables[".tsv"] and tables[".csv"]:
        raise UserError("the folder has .tsv and .csv files, which are read in different ways", folder, "put them into two folders")
    for path in tables[".csv"]:
        _check_quotes(path)
    # A TSV has no quotes (IANA text/tab-separated-values): a quote is a letter like others.
    return {"quoting": csv.QUOTE_NONE} if tables[".tsv"] else {}


def _check_quotes(path: Path) -> None:
    do = 'write the field as "..." and each quote in it twice, or save the table as .tsv, where quotes are letters'
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file, strict=True)
        before = 0
        try:
            for row in rows:
                before = rows.line_num
                del row
        except csv.Error as error:
            raise UserError(f"a quote is not closed as CSV wants it ({error}), and rows would be lost", f"{os.fspath(path)}, line {before + 1:,}", do) from None
