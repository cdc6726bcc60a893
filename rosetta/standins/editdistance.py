"""Levenshtein distance under the name seqio imports, for Pythons that the package `editdistance`
has no wheel for.

This folder comes last on sys.path, so where the real package is installed it is the one that is
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def eval(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:  # noqa: A001 - the package's name for it
    """Count the insertions, deletions and substitutions that turn `a` into `b`.

    Wagner and Fischer's recurrence (J. ACM 21(1), 1974) on two rows: O(len(a) * len(b)) time,
    O(len(b)) memory.
    """
    previous = list(range(len(b) + 1))
    for row, left in enumerate(a, 1):
        current = [row]
        for column, right in enumerate(b, 1):
            current.append(
                min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right))
            )
        previous = current
    return previous[-1]


distance = eval
