"""Tokens in several files as one endless sequence, from which windows are cut by position.

The token after the last one is the first one again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from rosetta.data import Array


class TokenShards(Protocol):
    """Tokens in files that are mapped into memory. Each file is a shard."""

    @property
    def ends(self) -> Array:
        """Where each shard ends in the sequence, int64 [shards]."""
        ...

    @property
    def size(self) -> int:
        """The number of all tokens."""
        ...

    def map_shard(self, number: int) -> Array:
        """Return the tokens of a shard, of any type of whole numbers."""
        ...


def read_tokens(shards: TokenShards, start: int, stop: int) -> Array:
    """Return the tokens in [start, stop), int32."""
    pieces = []
    while start < stop:
        begin = start % shards.size
        number = int(np.searchsorted(shards.ends, begin, side="right"))
        shard_begin = int(shards.ends[number - 1]) if number else 0
        end = min(begin + stop - start, int(shards.ends[number]))
        tokens = shards.map_shard(number)
        pieces.append(tokens[begin - shard_begin : end - shard_begin])
        start += end - begin
    return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).astype(np.int32)


def read_windows(shards: TokenShards, starts: Array, length: int) -> Array:
    """Return the windows of `length` tokens that begin at `starts`.

    Args:
        shards: The tokens.
        starts: int64 [n].
        length: At most the number of all tokens.

    Returns:
        int32 [n, length].
    """
    windows: Array = np.empty((len(starts), length), np.int32)
    starts = np.asarray(starts % shards.size)
    numbers: Array = np.searchsorted(shards.ends, starts, side="right")
    is_whole = starts + length <= shards.ends[numbers]
    for number in np.unique(numbers[is_whole]).tolist():
        rows = np.flatnonzero(is_whole & (numbers == number))
        shard_begin = int(shards.ends[number - 1]) if number else 0
        all_windows = np.lib.stride_tricks.sliding_window_view(
            np.asarray(shards.map_shard(number)), length
        )
        windows[rows] = all_windows[starts[rows] - shard_begin]
    for row in np.flatnonzero(~is_whole).tolist():
        start = int(starts[row])
        windows[row] = read_tokens(shards, start, start + length)
    return windows
