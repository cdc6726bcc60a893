"""Find where the hunks of a patch fit in a text, by the rules of `git apply` without fuzz.

The builder uses this to explain why a patch does not apply and which commit broke it.
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
    """One `@@` part of a patch.

    `body` has pairs of an operation (" ", "-" or "+") and a line with its newline. `line` is the
    number of the hunk's first line in the patch file.
    """

    line: int
    old_start: int
    new_start: int
    body: tuple[tuple[str, bytes], ...]

    @property
    def before(self) -> list[bytes]:
        """The lines that the hunk replaces, with their context."""
        return [text for op, text in self.body if op != "+"]

    @property
    def after(self) -> list[bytes]:
        """The lines that the hunk puts there, with their context."""
        return [text for op, text in self.body if op != "-"]

    @property
    def edges(self) -> tuple[int, int]:
        """The numbers of context lines at the start and at the end of the hunk."""
        operations = [operation for operation, _ in self.body]
        return _count_context(operations), _count_context(operations[::-1])

    def count(self, operation: str) -> int:
        """Return how many lines of the body have this operation."""
        return sum(1 for line_operation, _ in self.body if line_operation == operation)

    def reverse(self) -> Hunk:
        """Return the hunk that undoes this one."""
        opposite = {"-": "+", "+": "-", " ": " "}
        body = tuple((opposite[operation], text) for operation, text in self.body)
        return Hunk(self.line, self.new_start, self.old_start, body)


def _count_context(operations: Sequence[str]) -> int:
    """Return how many context lines come before the first change."""
    for count, operation in enumerate(operations):
        if operation != " ":
            return count
    return len(operations)


@dataclass(frozen=True)
class Fit:
    """Where one hunk fits in a text.

    `position` is the index of the line at which the hunk goes in, None if it fits nowhere.
    `expected` is the index that the hunk itself names. `places` is the number of places that fit.
    """

    position: int | None
    expected: int
    places: int

    @property
    def is_ambiguous(self) -> bool:
        """Whether the hunk fits in several places, none of them the line that it names."""
        return self.places > 1 and self.position != self.expected


def split_lines(data: bytes) -> list[bytes]:
    """Split `data` into lines that keep their ends."""
    return _LINE.findall(data)


def _find_places(text: list[bytes], hunk: Hunk, start: int) -> list[int]:
    """Return the indices of the lines, from `start` on, at which the hunk fits."""
    before = hunk.before
    last = len(text) - len(before)
    first = start
    if hunk.old_start <= 1:  # git lets a hunk that names the first line fit there only
        last = min(last, 0)
    if hunk.edges[1] == 0:  # and a hunk without context at its end only at the end of the file
        first = max(first, len(text) - len(before))
    if not before:
        return list(range(first, last + 1))
    places = []
    while first <= last:
        try:
            first = text.index(before[0], first, last + 1)
        except ValueError:
            break
        if text[first : first + len(before)] == before:
            places.append(first)
        first += 1
    return places


def fit_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> tuple[list[bytes], list[Fit]]:
    """Put each hunk that fits into the text, in order.

    Returns:
        The changed text, and one Fit per hunk.
    """
    result, fits, start = list(text), [], 0
    for hunk in hunks:
        expected = max(hunk.new_start - 1, 0)
        places = _find_places(result, hunk, start)
        position = min(places, key=lambda n: (abs(n - expected), n > expected), default=None)
        fits.append(Fit(position, expected, len(places)))
        if position is not None:
            result[position : position + len(hunk.before)] = hunk.after
            start = position + len(hunk.after)
    return result, fits


def apply_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> list[bytes] | None:
    """Return the text with all hunks in it; None if one of them fits nowhere."""
    result, fits = fit_hunks(text, hunks)
    return None if any(fit.position is None for fit in fits) else result


def reverse_hunks(hunks: Sequence[Hunk]) -> list[Hunk]:
    """Return the hunks that undo `hunks`."""
    return [hunk.reverse() for hunk in hunks]


def contains_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> bool:
    """Return whether the text has the changes of all hunks, each in an unambiguous place."""
    _, fits = fit_hunks(text, reverse_hunks(hunks))
    return all(fit.position is not None and not fit.is_ambiguous for fit in fits)


def accepts_hunks(text: Sequence[bytes], hunks: Sequence[Hunk]) -> bool:
    """Return whether every hunk fits in exactly one credible place.

    A patch that is applied already can seem to fit again: after a line was inserted before an empty
    line, the same context follows the inserted line. So if any hunk fits at a line other than the
    one that it names, the text must not have the changes of all the hunks already.
    """
    _, fits = fit_hunks(text, hunks)
    if any(fit.position is None or fit.is_ambiguous for fit in fits):
        return False
    at_own_lines = all(fit.position == fit.expected for fit in fits)
    return at_own_lines or not contains_hunks(text, hunks)
