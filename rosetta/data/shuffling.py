"""Order and randomness by position: keyed random bits and keyed permutations of any size.

Everything here is a pure function of integers, so each host can compute any row of any step by
itself. The rows of a source and all objectives draw from it. The results are promised across
releases: a change would reorder the examples of running trainings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rosetta.data import Array

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # the increment of SplitMix64
WORD_MASK = (1 << 64) - 1
ROUNDS = 6  # of the Feistel network


def mix_words(words: Array) -> Array:
    """Scramble words with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

    Args:
        words: uint64, any shape.

    Returns:
        uint64 of the same shape.
    """
    words = np.asarray(words, np.uint64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _mix_word(word: int) -> int:
    """Scramble one word, as mix_words does."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD_MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD_MASK
    return word ^ (word >> 31)


def derive_key(*words: int) -> int:
    """Return a key of 64 bits that depends on each of the words and on their order."""
    state = 0
    for word in words:
        state = _mix_word((state + GOLDEN_GAMMA + (word & WORD_MASK)) & WORD_MASK)
    return state


def extend_key(key: int, words: Array) -> Array:
    """Return the key of derive_key with one more word, for each word.

    Args:
        key: What derive_key returned for the words before.
        words: Integers [n].

    Returns:
        uint64 [n].
    """
    state = np.uint64((key + GOLDEN_GAMMA) & WORD_MASK)
    return mix_words(state + np.asarray(words).astype(np.uint64))


def derive_keys(base: int, words: Array) -> Array:
    """Return a key for each word: mix_words(base + GOLDEN_GAMMA * (word + 1)).

    The keys are as independent as those of derive_key, but not the same.

    Args:
        base: A key.
        words: Integers [n].

    Returns:
        uint64 [n].
    """
    counters = np.asarray(words).astype(np.uint64) + np.uint64(1)
    return mix_words(np.uint64(base) + np.uint64(GOLDEN_GAMMA) * counters)


def draw_words(row_keys: Array, count: int) -> Array:
    """Draw random words for each row (SplitMix64 in counter mode).

    Args:
        row_keys: uint64 [n], the key of each row.
        count: The number of words for each row.

    Returns:
        uint64 [n, count].
    """
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
    return mix_words(np.asarray(row_keys, np.uint64)[:, None] + counters[None, :])


def draw_integers(row_keys: Array, limit: Array | int) -> Array:
    """Draw an integer for each row, uniform in [0, limit). Probabilities are off by at most 2**-32.

    Args:
        row_keys: uint64 [n], the key of each row.
        limit: A number below 2**32, or one for each row [n].

    Returns:
        int64 [n].
    """
    high = draw_words(row_keys, 1)[:, 0] >> np.uint64(32)
    return ((high * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def permute_indices(indices: Array, size: int, permutation_key: int) -> Array:
    """Return where a permutation of range(size), chosen by a key, sends each index.

    It is an unbalanced Feistel network over the next power of two. An index that it sends outside
    range(size) is sent on until it falls inside (Black and Rogaway, "Ciphers with arbitrary finite
    domains", 2002). That needs fewer than two passes on average, and no table.

    Args:
        indices: int64, any shape, each in [0, size).
        size: The number of elements that are permuted.
        permutation_key: The key that chooses the permutation.

    Returns:
        int64 of the shape of `indices`.
    """
    permuted = np.asarray(indices).astype(np.uint64)
    if size <= 1:
        return permuted.astype(np.int64)
    width = max(2, (size - 1).bit_length())
    left, right = width // 2, width - width // 2
    round_keys = [np.uint64(derive_key(permutation_key, number)) for number in range(ROUNDS)]

    def apply_network(values: Array) -> Array:
        high, low = values >> np.uint64(right), values & np.uint64((1 << right) - 1)
        high_bits, low_bits = left, right
        for round_key in round_keys:
            mask = np.uint64((1 << high_bits) - 1)
            random_bits = mix_words(low + round_key) >> np.uint64(64 - high_bits)
            high, low = low, (high ^ random_bits) & mask
            high_bits, low_bits = low_bits, high_bits
        return (high << np.uint64(right)) | low

    with np.errstate(over="ignore"):
        permuted = apply_network(permuted)
        outside = permuted >= np.uint64(size)
        while outside.any():
            permuted[outside] = apply_network(permuted[outside])
            outside = permuted >= np.uint64(size)
    return permuted.astype(np.int64)


def locate_examples(
    examples: Array, size: int, seed: int, *, shuffle: bool = True
) -> tuple[Array, Array]:
    """Return the epoch and the index of each running example number.

    Every index comes once in each epoch, in another order each time.

    Args:
        examples: int64 [n], the numbers of examples since the run began.
        size: The number of examples in an epoch.
        seed: The seed of the order.
        shuffle: Whether to permute; otherwise each epoch is in the order of the data.

    Returns:
        The epochs, int64 [n], and the indices in [0, size), int64 [n].
    """
    examples = np.asarray(examples, np.int64)
    epochs, places = np.divmod(examples, size)
    if not shuffle:
        return epochs, places
    indices = np.empty_like(places)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        epoch_key = derive_key(seed, 1, int(epoch))
        indices[in_epoch] = permute_indices(places[in_epoch], size, epoch_key)
    return epochs, indices
