"""Packing: which short examples share a row, and what a model needs to tell them apart.

The rows are packed once, when the data is opened, so that any row of any epoch is found without
counting. `pair_rows.Pairs` packs with it, and the features of packed rows use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data import Array

# The number of rows that are filled at once. More rows pack a little better and take longer.
MAX_OPEN_ROWS = 64


def pack_examples(sizes: Array, order: Array, limits: Sequence[int]) -> list[list[int]]:
    """Pack examples into rows: first fit over a limited number of open rows.

    If an example fits no open row and MAX_OPEN_ROWS are open, the fullest one is closed.

    Args:
        sizes: int [n, 2], the tokens of inputs and targets of each example, within the limits.
        order: int [n], the order in which the examples are placed.
        limits: The tokens of inputs and of targets that a row has room for.

    Returns:
        The numbers of the examples of each row.
    """
    closed: list[list[int]] = []
    open_rows: list[list[int]] = []
    free: Array = np.zeros((0, 2), np.int64)  # the room in each open row
    for number in order.tolist():
        fitting = np.flatnonzero((free >= sizes[number]).all(axis=1))
        if len(fitting):
            open_rows[fitting[0]].append(number)
            free[fitting[0]] -= sizes[number]
            continue
        if len(open_rows) == MAX_OPEN_ROWS:
            fullest = int(np.argmin(free.min(axis=1)))
            closed.append(open_rows.pop(fullest))
            free = np.delete(free, fullest, axis=0)
        open_rows.append([number])
        free = np.concatenate([free, [np.array(limits) - sizes[number]]])
    return closed + open_rows


def compute_positions(segments: Array) -> Array:
    """Return the position of each token within its segment.

    Args:
        segments: int32 [n, length]: 1, 2, … for the segments of a row, 0 for padding.

    Returns:
        int32 [n, length], 0 for padding.
    """
    count, length = segments.shape
    begins = np.ones((count, length), bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    places = np.arange(length, dtype=np.int32)[None, :]
    starts = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return np.where(segments > 0, places - starts, 0).astype(np.int32)


def shift_right(tokens: Array, segments: Array) -> Array:
    """Return what a decoder reads to predict the tokens: each token one place later.

    Args:
        tokens: int32 [n, length].
        segments: int32 [n, length]: 1, 2, … for the segments of a row, 0 for padding.

    Returns:
        int32 [n, length], 0 where a segment begins.
    """
    shifted = np.zeros_like(tokens)
    shifted[:, 1:] = np.where(segments[:, 1:] == segments[:, :-1], tokens[:, :-1], 0)
    return shifted
