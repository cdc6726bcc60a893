"""Which short examples share a row.

Bundles are made once, so that any row of any epoch is found without counting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data import Array

MAX_OPEN_ROWS = 64  # rows being filled at once: more fills a little better and searches longer


def pack_examples(sizes: Array, drawn: Array, limits: Sequence[int]) -> list[list[int]]:
    """Return lists of examples that fit a row together: first fit over a bounded number of open
    rows.

    Args:
      sizes: int [n, 2]: tokens of inputs and targets; none above its limit.
      drawn: the order in which examples are placed.
      limits: tokens a row has for inputs and for targets.
    """
    done: list[list[int]] = []
    rows: list[list[int]] = []
    free: Array = np.zeros((0, 2), np.int64)
    for number in drawn.tolist():
        fits = np.flatnonzero((free >= sizes[number]).all(axis=1))
        if len(fits):
            rows[fits[0]].append(number)
            free[fits[0]] -= sizes[number]
            continue
        if len(rows) == MAX_OPEN_ROWS:
            fullest = int(np.argmin(free.min(axis=1)))
            done.append(rows.pop(fullest))
            free = np.delete(free, fullest, axis=0)
        rows.append([number])
        free = np.concatenate([free, [np.array(limits) - sizes[number]]])
    return done + rows


def compute_positions(segments: Array) -> Array:
    """Return int32 [n, length]: each token's place within its own segment, 0 for padding."""
    count, length = segments.shape
    begins = np.ones((count, length), bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    places = np.arange(length, dtype=np.int32)[None, :]
    starts = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return np.where(segments > 0, places - starts, 0).astype(np.int32)


def shift_right(tokens: Array, segments: Array) -> Array:
    """Return the tokens one place later, 0 where a segment begins: what a decoder reads to predict
    `tokens`.
    """
    found = np.zeros_like(tokens)
    found[:, 1:] = np.where(segments[:, 1:] == segments[:, :-1], tokens[:, :-1], 0)
    return found
