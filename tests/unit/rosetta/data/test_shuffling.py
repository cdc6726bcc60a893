from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rosetta.data import shuffling


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000, 4096, 65537])
def test_a_permutation_sends_every_index_to_another_place(size: int) -> None:
    for word in (0, 1, shuffling.derive_key(7, 3)):
        assert sorted(shuffling.permute_indices(np.arange(size), size, word).tolist()) == list(
            range(size)
        )


def test_a_large_permutation_needs_no_table_and_has_no_pattern() -> None:
    size = 10**13 + 7
    places: Any = np.arange(20_000) + 12345
    sent = shuffling.permute_indices(places, size, 5)
    assert sent.min() >= 0
    assert sent.max() < size
    assert len(set(sent.tolist())) == len(places)
    assert abs(np.corrcoef(places, sent)[0, 1]) < 0.03
    assert abs(sent.mean() / size - 0.5) < 0.01


def test_another_key_is_another_order() -> None:
    first, second = (shuffling.permute_indices(np.arange(1000), 1000, word) for word in (1, 2))
    assert (first == second).sum() < 20


def test_each_epoch_holds_every_example_once_in_its_own_order() -> None:
    epoch, index = shuffling.locate_examples(np.arange(300), 100, 3)
    assert epoch.tolist() == [0] * 100 + [1] * 100 + [2] * 100
    for turn in range(3):
        assert sorted(index[100 * turn : 100 * turn + 100].tolist()) == list(range(100))
    assert index[:100].tolist() != index[100:200].tolist()
    assert shuffling.locate_examples(np.arange(5), 3, 9, shuffle=False)[1].tolist() == [
        0,
        1,
        2,
        0,
        1,
    ]


def test_any_part_of_the_order_can_be_computed_alone() -> None:
    whole = shuffling.locate_examples(np.arange(1000), 77, 3)[1]
    assert (
        shuffling.locate_examples(np.arange(500, 600), 77, 3)[1].tolist() == whole[500:600].tolist()
    )


def test_keys_depend_on_every_word_and_its_place() -> None:
    keys = {
        shuffling.derive_key(*words)
        for words in [(0,), (0, 0), (0, 1), (1, 0), (1,), (1, 2, 3), (3, 2, 1), (-1,)]
    }
    assert len(keys) == 8
    assert all(0 <= word < 1 << 64 for word in keys)


def test_a_key_is_extended_by_each_word_as_derive_key_does() -> None:
    words = [0, 1, 77, 2**40, -1]
    keys = shuffling.extend_key(shuffling.derive_key(7, 3), np.array(words))
    assert keys.tolist() == [shuffling.derive_key(7, 3, word) for word in words]


def test_drawn_words_have_as_many_ones_as_zeros_in_every_bit() -> None:
    words = shuffling.draw_words(shuffling.derive_keys(1, np.arange(2000)), 8)
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 0.003
    assert len(np.unique(words)) == words.size


def test_drawn_integers_are_uniform_and_below_the_limit() -> None:
    drawn = shuffling.draw_integers(shuffling.derive_keys(4, np.arange(70_000)), 7)
    counts = np.bincount(drawn, minlength=7)
    assert len(counts) == 7
    assert abs(counts / 10_000 - 1).max() < 0.05
