"""Rows of .csv and .tsv files, read strictly: a row that is not well-formed is a bad record.

The first row is the header, and has the names of the columns. Every field is text: `NA` and `null`
are words, and `007` stays as it is.

- csv (RFC 4180): fields are separated by commas. A field in quotes may hold commas and line ends,
  and a quote in it is written twice. A quote in a field without quotes is refused, because the
  field may have been meant to go on after its comma.
- tsv (IANA text/tab-separated-values): fields are separated by tabs, and there is no quoting.
"""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, MISSING, UserError
from rosetta.data import bad_records, compressed_files, text_heads
from rosetta.data.bad_records import RecordFault
from rosetta.data.table_rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

SEPARATORS = {"csv": ",", "tsv": "\t"}
# A quote that is never closed must not take the rest of the file for one field.
MAX_ROW_BYTES = 1 << 24
_QUOTED_FIELD = re.compile(r'"([^"]*(?:""[^"]*)*)"')
_CLOSE_QUOTES = 'write the field as "..." and each quote in it twice, or save the table as .tsv'


class _Lines:
    """The lines of a file, some of which can be given back."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.lines = lines
        self.returned: collections.deque[bytes] = collections.deque()
        self.count = 0  # the lines that were taken and not given back

    def take(self) -> bytes:
        """Return the next line with its end; b"" at the end of the file."""
        line = self.returned.popleft() if self.returned else next(self.lines, b"")
        self.count += bool(line)
        return line

    def give_back(self, lines: list[bytes]) -> None:
        """Let the next calls of `take` return these lines again."""
        self.returned.extendleft(reversed(lines))
        self.count -= len(lines)


def read_columns(path: str, kind: str) -> tuple[str, ...]:
    """Return the names of a table's columns.

    Args:
        path: The file, which may be compressed.
        kind: "csv" or "tsv".

    Raises:
        UserError: There is no valid header.
    """
    with compressed_files.open_decompressed(path) as file:
        head = file.peek(text_heads.HEAD_BYTES)[: text_heads.HEAD_BYTES]
        text_heads.check_text_head(head, path)
        return _read_header(_Lines(iter(file)), path, kind)


def read_rows(path: str, kind: str) -> Iterator[Row]:
    """Yield the rows of a table, in the order of the file. Blank lines are left out.

    Args:
        path: The file, which may be compressed.
        kind: "csv" or "tsv".

    Raises:
        UserError: There is no valid header, or the file is damaged.
    """
    with compressed_files.open_decompressed(path) as file:
        head = file.peek(text_heads.HEAD_BYTES)[: text_heads.HEAD_BYTES]
        text_heads.check_text_head(head, path)
        lines = _Lines(iter(file))
        columns = _read_header(lines, path, kind)
        while line := lines.take():
            number = lines.count
            if not line.strip(b" \r\n" if kind == "tsv" else None):
                continue
            try:
                fields = _take_fields(line, lines, path, kind)
                if len(fields) != len(columns):
                    raise _describe_wrong_width(len(fields), len(columns), kind)
            except RecordFault as fault:
                yield Row(f"line {number:,}", {}, fault)
                continue
            yield Row(f"line {number:,}", dict(zip(columns, fields, strict=True)), None)


def _read_header(lines: _Lines, path: str, kind: str) -> tuple[str, ...]:
    """Return the names of the columns.

    Raises:
        UserError: The header is missing, is not well-formed, or has a name twice or an empty one.
    """
    line = lines.take()
    if not line.strip():
        raise UserError(
            "the table has no header",
            path,
            "write the names of the columns into the first line",
            kind=MISSING,
        )
    try:
        names = _take_fields(line.removeprefix(b"\xef\xbb\xbf"), lines, path, kind)
    except RecordFault as fault:
        raise UserError(fault.what, f"{path}, line 1", fault.do, kind=INVALID) from None
    for name in names:
        if not name.strip():
            problem = "a column of the header has no name"
        elif names.count(name) > 1:
            problem = f"the header has the column {name!r} {names.count(name)} times"
        else:
            continue
        raise UserError(
            problem,
            f"{path}, line 1",
            "give each column a name of its own in the first line",
            kind=INVALID,
            value=name,
        )
    return tuple(names)


def _take_fields(line: bytes, lines: _Lines, path: str, kind: str) -> list[str]:
    """Return the fields of the row that begins with a line, and take its further lines.

    Raises:
        RecordFault: The row is not well-formed. Then no further line was taken.
    """
    if kind == "tsv" or b'"' not in line:
        fields = bad_records.decode_text(line, path).rstrip("\n").removesuffix("\r")
        if "\r" in fields:
            raise _describe_carriage_return()
        return fields.split(SEPARATORS[kind])
    # A row that is well-formed has an even number of quotes.
    row_lines = [line]
    quotes, size = line.count(b'"'), len(line)
    while quotes % 2 and size < MAX_ROW_BYTES and (line := lines.take()):
        row_lines.append(line)
        quotes += line.count(b'"')
        size += len(line)
    try:
        if quotes % 2:
            raise RecordFault("a quote is not closed", _CLOSE_QUOTES)
        text = bad_records.decode_text(b"".join(row_lines), path)
        return _split_quoted_row(text.removesuffix("\n").removesuffix("\r"))
    except RecordFault:
        lines.give_back(row_lines[1:])
        raise


def _split_quoted_row(text: str) -> list[str]:
    """Return the fields of a row of a .csv file.

    Raises:
        RecordFault: A quote is where none may be.
    """
    fields = []
    place = 0
    while True:
        if text.startswith('"', place):
            match = _QUOTED_FIELD.match(text, place)
            if match is None:
                raise RecordFault("a quote is not closed", _CLOSE_QUOTES)
            fields.append(match[1].replace('""', '"'))
            place = match.end()
            if place < len(text) and text[place] != ",":
                raise RecordFault(
                    f"after the quote that closes field {len(fields)} comes {text[place]!r}",
                    _CLOSE_QUOTES,
                    "a quote inside a field is not written twice",
                )
        else:
            end = text.find(",", place)
            end = len(text) if end < 0 else end
            field = text[place:end]
            if '"' in field:
                raise RecordFault(
                    f"field {len(fields) + 1} has a quote and does not begin with one",
                    _CLOSE_QUOTES,
                    "a quote in a field without quotes",
                )
            if "\r" in field or "\n" in field:
                raise _describe_carriage_return()
            fields.append(field)
            place = end
        if place >= len(text):
            return fields
        place += 1


def _describe_carriage_return() -> RecordFault:
    """Return the fault of a row with a carriage return in it."""
    return RecordFault(
        "a carriage return is inside the row",
        "end every line with a line feed (dos2unix -c mac FILE)",
    )


def _describe_wrong_width(count: int, width: int, kind: str) -> RecordFault:
    """Return the fault of a row with another number of fields than the header."""
    if kind == "tsv":
        remedy = "give every row as many tabs as the header"
    else:
        remedy = (
            'give every row as many fields as the header; write a field with a comma in it as "..."'
        )
    return RecordFault(
        f"the row has {count} fields, and the header has {width}",
        remedy,
        "a row with another number of fields than the header",
    )
