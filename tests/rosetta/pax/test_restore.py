"""What CHECKPOINT_RESTORE_PATH may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rosetta import jaxkit

jaxkit.need("jax", "paxml")

from rosetta.errors import UserError
from rosetta.pax import restore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (100, 200):
        (tmp_path / f"run/checkpoints/checkpoint_{step:08}").mkdir(parents=True)
    (tmp_path / "run/checkpoints/checkpoint_00000300.tmp").mkdir()
    return tmp_path / "run"


def test_a_run_its_checkpoints_or_one_of_them(run: Path) -> None:
    folder = str(run / "checkpoints")
    assert restore.found(str(run)) == restore.found(f"{run}/") == restore.found(folder) == restore.found(f"{folder}/") == (folder, None)
    assert restore.found(f"{folder}/checkpoint_00000100") == (folder, 100)
    assert restore.found("gs://bucket/run/checkpoints") == ("gs://bucket/run/checkpoints", None)
    assert restore.found("gs://bucket/run/checkpoints/checkpoint_00000007") == ("gs://bucket/run/checkpoints", 7)


def test_where_there_is_none_is_one_line(run: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone", run / "checkpoints/checkpoint_00000300", run / "checkpoints/checkpoint_00000300.tmp"):
        with pytest.raises(UserError, match="there is no checkpoint_N") as caught:
            restore.found(str(path))
        assert caught.value.where == f"CHECKPOINT_RESTORE_PATH={path}"
