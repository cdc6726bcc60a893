from __future__ import annotations

import numpy as np
import pytest

from rosetta.pax.windows import EOS, OFFSET, VOCABULARY, Windows, tokens


def test_bytes_become_ids_and_lines_documents() -> None:
    ids = tokens([b"ab\n", b"\xff"])
    assert ids.tolist() == [ord("a") + OFFSET, ord("b") + OFFSET, EOS, 255 + OFFSET]
    assert ids.dtype == np.int32
    assert ids.max() < VOCABULARY


def test_an_epoch_gives_each_window_once_over_all_hosts() -> None:
    windows = Windows(count=14, batch=2, hosts=3)
    # Two whole global batches of six; the last two windows wait for another epoch's shuffle.
    given = [int(n) for step in range(2) for host in range(3) for n in windows.rows(step, host)]
    assert len(given) == len(set(given)) == 12
    assert set(given) <= set(range(14))


def test_epochs_differ_and_repeat_for_the_same_seed() -> None:
    windows = Windows(count=64, batch=4)
    first, second = ([int(n) for step in range(16) for n in windows.rows(epoch * 16 + step)] for epoch in range(2))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    again = Windows(count=64, batch=4)
    assert again.rows(17).tolist() == second[4:8]
    assert Windows(count=64, batch=4, seed=1).rows(17).tolist() != second[4:8]


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"5 windows, fewer than one global batch of 6"):
        Windows(count=5, batch=3, hosts=2)
