"""Order and randomness without a table: keyed bits and keyed permutations of any size.

Everything here is a pure function of integers, so that any host can work out any row of any step by
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rosetta.data import Array

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
WORD_MASK = (1 << 64) - 1
ROUNDS = 6


def mix_words(words: Array) -> Array:
    """Return the words scrambled by the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA
    2014).

    Args:
      words: uint64, any shape.
    """
    words = np.asarray(words, np.uint64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_word(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD_MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD_MASK
    return word ^ (word >> 31)


def derive_key(*words: int) -> int:
    """Return 64 bits that depend on every one of the words and on their order."""
    state = 0
    for word in words:
        state = _mix_word((state + GOLDEN_GAMMA + (word & WORD_MASK)) & WORD_MASK)
    return state


def derive_keys(base: int, words: Array) -> Array:
    """Return mix(base + GOLDEN (word + 1)) for each word [n]: uint64 [n], as independent as `key`'s
    but not the same.
    """
    return mix_words(
        np.uint64(base)
        + np.uint64(GOLDEN_GAMMA) * (np.asarray(words).astype(np.uint64) + np.uint64(1))
    )


def draw_words(row_keys: Array, count: int) -> Array:
    """Return uint64 [n, count]: `count` random words for each row's key [n] (SplitMix64 in counter
    mode).
    """
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    return mix_words(np.asarray(row_keys, np.uint64)[:, None] + counters[None, :])


def draw_integers(row_keys: Array, limit: Array | int) -> Array:
    """Return int64 [n], each uniform in [0, limit) (limit [n] or a number below 2**32, off by at
    most 2**-32).
    """
    high = draw_words(row_keys, 1)[:, 0] >> np.uint64(32)
    return ((high * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def permute_indices(places: Array, size: int, word: int) -> Array:
    """Return where a permutation of range(size), chosen by the key `word`, sends each of `places`.

    An unbalanced Feistel network over the next power of two; what falls outside walks on until it
    falls inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): fewer than two
    turns on average, and no table.

    Args:
      places: int64, any shape, each in [0, size).
      size: how many there are.
      word: the key.
    """
    found = np.asarray(places).astype(np.uint64)
    if size <= 1:
        return found.astype(np.int64)
    width = max(2, (size - 1).bit_length())
    left, right = width // 2, width - width // 2
    rounds = [np.uint64(derive_key(word, turn)) for turn in range(ROUNDS)]

    def once(values: Array) -> Array:
        high, low = values >> np.uint64(right), values & np.uint64((1 << right) - 1)
        high_bits, low_bits = left, right
        for word_of_round in rounds:
            turned = (
                high ^ (mix_words(low + word_of_round) >> np.uint64(64 - high_bits))
            ) & np.uint64((1 << high_bits) - 1)
            high, low, high_bits, low_bits = low, turned, low_bits, high_bits
        return (high << np.uint64(right)) | low

    with np.errstate(over="ignore"):
        found = once(found)
        outside = found >= np.uint64(size)
        while outside.any():
            found[outside] = once(found[outside])
            outside = found >= np.uint64(size)
    return found.astype(np.int64)


def locate_examples(
    examples: Array, size: int, seed: int, *, shuffle: bool = True
) -> tuple[Array, Array]:
    """Return (epoch, index) of each running example number [n]: every index once an epoch, in
    another order each time.
    """
    examples = np.asarray(examples, np.int64)
    epoch, place = np.divmod(examples, size)
    if not shuffle:
        return epoch, place
    index = np.empty_like(place)
    for turn in np.unique(epoch):
        here = epoch == turn
        index[here] = permute_indices(place[here], size, derive_key(seed, 1, int(turn)))
    return epoch, index
