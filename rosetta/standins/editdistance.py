"""The Levenshtein distance, under the module name that SeqIO imports.

It replaces the package `editdistance` on Pythons that the package has no wheel for. This folder is
the last one on sys.path, so Python imports the real package if that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def eval(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:  # noqa: A001 - the package's name for it
    """Return the number of insertions, deletions and substitutions that turn `a` into `b`.

    The recurrence is that of Wagner and Fischer (J. ACM 21(1), 1974). Only two rows of its table
    are kept: the time is O(len(a) * len(b)), and the memory O(len(b)).
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
