"""Where a hunk fits in a text, by the rules of `git apply` without fuzz: for saying why a patch
fails, and since when.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class Hunk:
    """One `@@` part.

    `body` holds (" " | "-" | "+", line with its newline); `line` is where it stands in the patch
    file.
    """

    line: int
    old_start: int
    new_start: int
    body: tuple[tuple[str, bytes], ...]

    @property
    def before(self) -> list[bytes]:
        return [text for op, text in self.body if op != "+"]

    @property
    def after(self) -> list[bytes]:
        return [text for op, text in self.body if op != "-"]

    @property
    def edges(self) -> tuple[int, int]:
        """How many lines of context it starts and ends with."""
        ops = [op for op, _ in self.body]
        leading = next((n for n, op in enumerate(ops) if op != " "), len(ops))
        return leading, next((n for n, op in enumerate(reversed(ops)) if op != " "), len(ops))

    def count(self, op: str) -> int:
        return sum(1 for kind, _ in self.body if kind == op)

    def reverse(self) -> Hunk:
        """Return the hunks that undo `hunks`."""
        turned = tuple(({"-": "+", "+": "-"}.get(op, op), text) for op, text in self.body)
        return Hunk(self.line, self.new_start, self.old_start, turned)


@dataclass(frozen=True)
class Fit:
    """How one hunk meets a text: the 0-based line it goes to (None: nowhere), where it expected to
    go, in how many places it fits.
    """

    at: int | None
    expected: int
    places: int

    @property
    def doubtful(self) -> bool:
        """It fits in several places, and none of them is its own line: which one is meant is a
        guess.
        """
        return self.places > 1 and self.at != self.expected


def split_lines(data: bytes) -> list[bytes]:
    """Split `data` into lines that keep their ends."""
    return _LINE.findall(data)


def _find_places(text: list[bytes], hunk: Hunk, start: int) -> list[int]:
    before = hunk.before
    last = len(text) - len(before)
    first = start
    if hunk.old_start <= 1:  # git's rule: a hunk that names the first line fits there only
        last = min(last, 0)
    if hunk.edges[1] == 0:  # and one without context at its end fits at the end only
        first = max(first, len(text) - len(before))
    if not before:
        return list(range(first, last + 1))
    found = []
    while first <= last:
        try:
            first = text.index(before[0], first, last + 1)
        except ValueError:
            break
        if text[first : first + len(before)] == before:
            found.append(first)
        first += 1
    return found


def fit_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> tuple[list[bytes], list[Fit]]:
    """Put in each hunk that fits, in order; the text that comes of it, and a Fit per hunk."""
    result, fits, done = list(text), [], 0
    for hunk in hunks:
        expected = max(hunk.new_start - 1, 0)
        places = _find_places(result, hunk, done)
        at = min(places, key=lambda n: (abs(n - expected), n > expected), default=None)
        fits.append(Fit(at, expected, len(places)))
        if at is not None:
            result[at : at + len(hunk.before)] = hunk.after
            done = at + len(hunk.after)
    return result, fits


def apply_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> list[bytes] | None:
    """Return the text with all hunks in it; None if one fits nowhere."""
    result, fits = fit_hunks(text, hunks)
    return None if any(one.at is None for one in fits) else result


def reverse_hunks(hunks: Sequence[Hunk]) -> list[Hunk]:
    """Return the hunks that undo `hunks`."""
    return [hunk.reverse() for hunk in hunks]


def contains_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> bool:
    """Whether all hunks are in the text already, each in a place that is no guess."""
    _, fits = fit_hunks(text, reverse_hunks(hunks))
    return all(one.at is not None and not one.doubtful for one in fits)


def accepts_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> bool:
    """Whether all hunks fit beyond doubt.

    Lines inserted before an empty one fit a second time behind themselves: what fits, but not at
    its own line, and is there already, is in doubt too.
    """
    _, fits = fit_hunks(text, hunks)
    if any(one.at is None or one.doubtful for one in fits):
        return False
    return all(one.at == one.expected for one in fits) or not contains_hunks(text, hunks)
