"""Runs where praxis is: in a baked environment, by its own Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("praxis", reason="praxis is not installed here", exc_type=ImportError)

if TYPE_CHECKING:
    from pathlib import Path


def local(path: Path, **more: Any) -> Any:
    from rosetta.pax.text import LocalText

    return LocalText(name="train", is_training=True, files=str(path / "*.txt"), seq_len=8, batch_size=4, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(bytes(range(32, 127)) * 2)
    (tmp_path / "b.txt").write_bytes(b"one line\nanother\n" * 20)
    return tmp_path


def test_a_batch(folder: Path) -> None:
    batch = local(folder).get_next()
    for name in ("ids", "labels", "paddings", "weights", "segment_ids", "segment_pos"):
        assert batch[name].shape == (4, 8)
    assert np.array_equal(batch.ids[:, 1:], batch.labels[:, :-1])
    assert batch.eval_sample_weights.tolist() == [1.0] * 4


def test_it_goes_on_where_it_stopped(folder: Path) -> None:
    first = local(folder)
    for _ in range(20):
        first.get_next()
    state = first.get_state()
    expected = [first.get_next().ids for _ in range(3)]
    second = local(folder)
    second.set_state(state)
    assert all(np.array_equal(second.get_next().ids, ids) for ids in expected)
    second.reset()
    assert np.array_equal(second.get_next().ids, local(folder).get_next().ids)


def test_hosts_see_different_rows(folder: Path) -> None:
    ids = [local(folder, num_infeed_hosts=2, infeed_host_index=host).get_next().ids for host in range(2)]
    assert not np.array_equal(*ids)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text file matches"):
        local(tmp_path)
