"""A fingerprint changes with the files of a folder, and with nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rosetta.core.folder_fingerprint import compute_fingerprint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model" / "part").mkdir(parents=True)
    (tmp_path / "model" / "part" / "weights").write_text("1")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new").write_text(""),
        lambda folder: (folder / "part" / "weights").write_text("12"),
        lambda folder: (folder / "part" / "weights").rename(folder / "part" / "other"),
        lambda folder: os.utime(folder / "part" / "weights", ns=(5, 5)),
        lambda folder: (folder / "part" / "weights").unlink(),
    ],
)
def test_a_change_is_noticed(folder: Path, change: Callable[[Path], object]) -> None:
    before = compute_fingerprint(folder)
    assert compute_fingerprint(folder) == before
    change(folder)
    assert compute_fingerprint(folder) != before


def test_another_folder_has_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    before = compute_fingerprint(folder)
    folder.rename(tmp_path / "moved")
    assert compute_fingerprint(tmp_path / "moved") != before


def test_an_empty_folder_in_it_does_not_count(folder: Path) -> None:
    before = compute_fingerprint(folder)
    (folder / "empty").mkdir()
    assert compute_fingerprint(folder) == before
