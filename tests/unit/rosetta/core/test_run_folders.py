from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core import run_folders
from tests.support import errors


def test_folders_that_cannot_be_made_are_refused() -> None:
    with errors.expect_user_error(errors.DENIED, where="/proc/a/b", value="/proc"):
        run_folders.check_folder_writable("/proc/a/b")  # not by the superuser either
    run_folders.check_folder_writable("gs://bucket/a")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run_folders.write_file(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"
    with pytest.raises(UnicodeEncodeError):
        run_folders.write_file(tmp_path / "new" / "file", "\ud800")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_text() == "text"


def test_checkpoints_of_a_folder(tmp_path: Path) -> None:
    assert run_folders.list_checkpoint_steps(str(tmp_path / "nowhere")) == []
    for name in (
        "checkpoint_20",
        "checkpoint_3",
        "checkpoint_00000007",
        "checkpoint_30.orbax-checkpoint-tmp",
        "other",
    ):
        (tmp_path / name).mkdir()
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == [3, 7, 20]
    assert run_folders.parse_checkpoint_step(f"{tmp_path}/checkpoint_3/") == 3
    assert run_folders.parse_checkpoint_step(str(tmp_path)) is None
