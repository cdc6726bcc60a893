"""Records that cannot be used: what becomes of them, and how many there were."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.errors import INVALID, UserError
from rosetta.core.variables.setting_values import read_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

VARIABLE = "BAD_RECORDS"
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPORTED_COUNTS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)

_skipped: set[str] = set()
_repaired: set[str] = set()
_untaken_notes: list[
    tuple[str, str, str]
] = []  # (place, file, what) of this process, for the one that trains
_is_worker = False


class BadRecordError(UserError):
    """A record that cannot be used.

    Attributes:
      fault: what is wrong, the same for all records with it; its `kind` is always INVALID.
      path: the file, or the source where it has no files.
    """

    def __init__(self, what: str, where: str, do: str, *, fault: str = "", path: str = "") -> None:
        super().__init__(what, where, do, kind=INVALID)
        self.fault, self.path = fault or what, path or where


class RecordFault(ValueError):  # noqa: N818 (BadRecordError is the error: this one does not know its place)
    """What is wrong with a record, wherever it is.

    Attributes:
      what: the fault, with what of the record shows it.
      do: what to do about it.
      kind: the fault, the same for all records with it.
    """

    def __init__(self, what: str, do: str, kind: str = "") -> None:
        super().__init__(what)
        self.what, self.do, self.kind = what, do, kind or what

    def locate(self, path: str, place: str) -> BadRecordError:
        """Return the error for the record at a place ("line 3") of a file."""
        return BadRecordError(self.what, f"{path}, {place}", self.do, fault=self.kind, path=path)


def read_policy() -> str:
    """Return what BAD_RECORDS says: "stop" or "skip".

    Raises:
      UserError: it says something else.
    """
    value: str = read_setting(os.environ, VARIABLE)
    return value


def stop_or_skip(error: BadRecordError) -> None:
    """Raise the error, or count the record as skipped where BAD_RECORDS=skip."""
    if read_policy() == "stop":
        do = f"{error.do}, or skip such records: {VARIABLE}=skip"
        raise BadRecordError(error.what, error.where, do, fault=error.fault, path=error.path)
    note_skipped(error.where, error.path, error.what)


def note_skipped(place: str, path: str, what: str) -> None:
    """Count a record as skipped, once wherever it is met again.

    The first of them and then round counts are said.
    """
    if place in _skipped:
        return
    _skipped.add(place)
    _untaken_notes.append((place, path, what))
    if _is_worker:
        return
    if len(_skipped) == 1:
        log.warn(f"data: {place}: {what}; skipped ({VARIABLE}=skip), and others are counted")
    elif len(_skipped) in _REPORTED_COUNTS:
        log.warn(f"data: {len(_skipped):,} bad records are skipped so far")


def count_skipped() -> int:
    """Return how many records this process knows to be skipped."""
    return len(_skipped)


def report_skipped() -> None:
    """Say how many records were skipped, if any."""
    if _skipped:
        log.warn(f"data: {len(_skipped):,} bad records were skipped ({VARIABLE}=skip)")


def decode_text(body: bytes, path: str) -> str:
    """Return UTF-8 text, what is not UTF-8 as U+FFFD. A file with such bytes is said once."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        note_repaired(path)
        return body.decode(errors="replace")


def replace_surrogates(text: str, path: str) -> str:
    """Return the text with each lone surrogate as U+FFFD, as decoders of UTF-8 do. A file with one
    is said once.

    JSON may hold half of a character, an escape of D800 to DFFF by itself. UTF-8 has no form of it,
    so no vocabulary takes it.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text
    note_repaired(path)
    return _SURROGATE.sub("\ufffd", text)


def note_repaired(path: str) -> None:
    """Note that text of a file was repaired."""
    if path in _repaired:
        return
    _repaired.add(path)
    _untaken_notes.append(("", path, ""))
    if not _is_worker:
        log.warn(
            f"data: {path} has text that is not valid Unicode (bytes that are not UTF-8, or "
            "half of a character); it is read as U+FFFD"
        )


def mute_warnings() -> None:
    """Say nothing in this process: what it notes is taken and said by another."""
    global _is_worker  # noqa: PLW0603 (of the process)
    _is_worker = True


def take_notes() -> list[tuple[str, str, str]]:
    """Return what was noted since the last call, for `add_notes` in another process."""
    notes = list(_untaken_notes)
    _untaken_notes.clear()
    return notes


def add_notes(notes: Iterable[tuple[str, str, str]]) -> None:
    """Note what another process has noted."""
    for place, path, what in notes:
        if place:
            note_skipped(place, path, what)
        else:
            note_repaired(path)
    _untaken_notes.clear()


def forget_notes() -> None:
    """Forget all that was noted."""
    _skipped.clear()
    _repaired.clear()
    _untaken_notes.clear()


class BadRecordSummary:
    """Takes bad records in, for a report: all are counted, the first ones of each kind are kept.

    Attributes:
      total: how many there were.
      kinds: kind -> how many.
      lines: the first ones, as lines.
    """

    EACH = 3  # lines kept of a kind
    MOST = 20  # lines kept in all

    def __init__(self) -> None:
        self.total = 0
        self.kinds: dict[str, int] = {}
        self.lines: list[str] = []

    def __call__(self, error: BadRecordError) -> None:
        """Count a bad record."""
        self.total += 1
        self.kinds[error.fault] = self.kinds.get(error.fault, 0) + 1
        if self.kinds[error.fault] <= self.EACH and len(self.lines) < self.MOST:
            self.lines.append(f"{error.where}: {error.what}")
