"""Bad records: count them, and stop or skip as the variable BAD_RECORDS says.

A record is one line of text, JSON object, tf.train.Example or row of a Hugging Face set. The
readers of data use this module where a record cannot be decoded or lacks a field.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from rosetta.core import log
from rosetta.core.errors import INVALID, UserError
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = "BAD_RECORDS"
_SURROGATE = re.compile("[\ud800-\udfff]")
# The numbers of skipped records at which a warning reports the count.
_REPORTED_COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


class Note(NamedTuple):
    """What one process tells another about a skipped record or a repaired file.

    Attributes:
        place: The place of a skipped record; "" for a repaired file.
        path: The file.
        problem: What is wrong with a skipped record.
    """

    place: str
    path: str
    problem: str


_skipped: set[str] = set()
_repaired: set[str] = set()
# What this process noted and did not yet send to the process that trains.
_untaken_notes: list[Note] = []
_is_muted = False


class BadRecordError(UserError):
    """A record that cannot be used, with its place.

    Attributes:
        fault: What is wrong, in the same words for all records with this fault. The attribute
            `kind` is always INVALID.
        path: The file, or the source if it has no files.
    """

    def __init__(self, what: str, where: str, do: str, *, fault: str = "", path: str = "") -> None:
        super().__init__(what, where, do, kind=INVALID)
        self.fault = fault or what
        self.path = path or where


class RecordFault(ValueError):  # noqa: N818 (BadRecordError is the error that users see)
    """What is wrong with a record, raised by code that does not know the record's place.

    Attributes:
        what: The fault, with the part of the record that shows it.
        do: What to do about it.
        kind: The fault, in the same words for all records with it.
    """

    def __init__(self, what: str, do: str, kind: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.do = do
        self.kind = kind or what

    def locate(self, path: str, place: str) -> BadRecordError:
        """Return the error for a record at a place in a file, such as "line 3"."""
        return BadRecordError(self.what, f"{path}, {place}", self.do, fault=self.kind, path=path)


def read_policy() -> str:
    """Return the value of BAD_RECORDS: "stop" or "skip".

    Raises:
        UserError: The variable has another value.
    """
    value: str = read_setting(os.environ, VARIABLE)
    return value


def stop_or_skip(error: BadRecordError) -> None:
    """Raise the error, or count the record as skipped if BAD_RECORDS=skip.

    Raises:
        BadRecordError: BAD_RECORDS is "stop".
    """
    if read_policy() == "stop":
        remedy = f"{error.do}, or skip such records: {VARIABLE}=skip"
        raise BadRecordError(error.what, error.where, remedy, fault=error.fault, path=error.path)
    note_skipped(error.where, error.path, error.what)


def note_skipped(place: str, path: str, problem: str) -> None:
    """Count a record as skipped, once for each place.

    A warning reports the first skipped record, and the count at 10, 100 and so on.

    Args:
        place: The file and the place in it.
        path: The file.
        problem: What is wrong with the record.
    """
    if place in _skipped:
        return
    _skipped.add(place)
    _untaken_notes.append(Note(place, path, problem))
    if _is_muted:
        return
    if len(_skipped) == 1:
        log.warn(
            f"data: {place}: {problem}; skipped ({VARIABLE}=skip), further ones are only counted"
        )
    elif len(_skipped) in _REPORTED_COUNTS:
        log.warn(f"data: {len(_skipped):,} bad records are skipped so far")


def count_skipped() -> int:
    """Return the number of skipped records that this process knows of."""
    return len(_skipped)


def report_skipped() -> None:
    """Log the number of skipped records, if there are any."""
    if _skipped:
        log.warn(f"data: {len(_skipped):,} bad records were skipped ({VARIABLE}=skip)")


def decode_text(body: bytes, path: str) -> str:
    """Decode UTF-8, and replace invalid bytes by U+FFFD. Warn once for each such file."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        note_repaired(path)
        return body.decode(errors="replace")


def replace_surrogates(text: str, path: str) -> str:
    """Replace each lone surrogate by U+FFFD, as UTF-8 decoders do. Warn once for each such file.

    JSON may hold half of a character: an escape from D800 to DFFF by itself. UTF-8 cannot encode
    it, so no vocabulary accepts it.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    note_repaired(path)
    return _SURROGATE.sub("\ufffd", text)


def note_repaired(path: str) -> None:
    """Note that invalid text of a file was replaced, and warn once for each file."""
    if path in _repaired:
        return
    _repaired.add(path)
    _untaken_notes.append(Note("", path, ""))
    if not _is_muted:
        log.warn(
            f"data: {path} has text that is not valid Unicode (bytes that are not UTF-8, or "
            "half of a character); U+FFFD is read in their place"
        )


def mute_warnings() -> None:
    """Log nothing in this process: a worker's notes are logged by the process that trains."""
    global _is_muted  # noqa: PLW0603 (of the process)
    _is_muted = True


def take_notes() -> list[Note]:
    """Return the notes since the last call, for `add_notes` in another process."""
    notes = list(_untaken_notes)
    _untaken_notes.clear()
    return notes


def add_notes(notes: Iterable[Note]) -> None:
    """Count and log what another process noted."""
    for note in notes:
        if note.place:
            note_skipped(note.place, note.path, note.problem)
        else:
            note_repaired(note.path)
    _untaken_notes.clear()


def forget_notes() -> None:
    """Forget all skipped records and repaired files."""
    _skipped.clear()
    _repaired.clear()
    _untaken_notes.clear()


class BadRecordSummary:
    """Count bad records and keep the first ones of each kind, for a report.

    It can be passed where a function that handles a bad record is expected.

    Attributes:
        total: The number of bad records.
        kinds: The number of bad records by fault.
        lines: The first bad records, one line each.
    """

    MAX_LINES_PER_KIND = 3
    MAX_LINES = 20

    def __init__(self) -> None:
        self.total = 0
        self.kinds: dict[str, int] = {}
        self.lines: list[str] = []

    def __call__(self, error: BadRecordError) -> None:
        """Count a bad record."""
        self.total += 1
        count = self.kinds.get(error.fault, 0) + 1
        self.kinds[error.fault] = count
        if count <= self.MAX_LINES_PER_KIND and len(self.lines) < self.MAX_LINES:
            self.lines.append(f"{error.where}: {error.what}")
