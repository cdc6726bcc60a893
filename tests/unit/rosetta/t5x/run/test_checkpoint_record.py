"""A checkpoint's record: beside it, then inside it; whose it is; and where none can be saved."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_folders
from rosetta.t5x.run import checkpoint_record
from rosetta.t5x.run.checkpoint_record import Record
from tests.support import errors


def _checkpoint(folder: Path, step: int, run: str | None = None) -> Path:
    """A checkpoint_N as a run leaves it: with its record beside it, or without one."""
    made = folder / f"checkpoint_{step}"
    made.mkdir()
    if run is not None:
        checkpoint_record.write_record(
            str(folder), Record(step=step, scale_attn_logits=True, run=run)
        )
    return made


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    kept = Record(
        7, True, 16, 114, "abc", {"seed": 3, "streams": []}, "r", {"fp8": "xla"}, {"jax": "1"}
    )
    checkpoint_record.write_record(str(tmp_path), kept)
    assert checkpoint_record.read_record(f"{tmp_path}/checkpoint_7/") == kept
    assert checkpoint_record.read_record(f"{tmp_path}/checkpoint_8") is None


def test_a_checkpoint_copied_alone_takes_its_record_along(tmp_path: Path) -> None:
    made = _checkpoint(tmp_path, 7, "r")
    checkpoint_record.distribute_records(str(tmp_path))
    made.rename(tmp_path / "elsewhere")
    (tmp_path / "new").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "new" / "checkpoint_7")
    found = checkpoint_record.read_record(f"{tmp_path}/new/checkpoint_7")
    assert found is not None
    assert found.run == "r"


def test_an_unfinished_save_gets_no_record(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 7, "r")
    checkpoint_record.write_record(str(tmp_path), Record(step=8, scale_attn_logits=False))
    checkpoint_record.distribute_records(str(tmp_path))
    assert not (tmp_path / "checkpoint_8").exists()
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == [7]


def test_records_of_deleted_checkpoints_are_deleted(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 10)  # copied here
    for step in (30, 50):
        _checkpoint(tmp_path, step, "r")
    for step in (20, 40, 60):
        checkpoint_record.write_record(str(tmp_path), Record(step=step, scale_attn_logits=True))

    def kept() -> list[str]:
        return sorted(path.name for path in (tmp_path / checkpoint_record.RECORD_FOLDER).iterdir())

    checkpoint_record.distribute_records(str(tmp_path))
    assert kept() == [
        "checkpoint_30.json",
        "checkpoint_50.json",
        "checkpoint_60.json",
    ]  # 60 may be on its way
    checkpoint_record.distribute_records(str(tmp_path), idle=True)
    assert kept() == ["checkpoint_30.json", "checkpoint_50.json"]


def test_a_full_disk_leaves_no_part_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint_record.write_record(str(tmp_path), Record(step=8, scale_attn_logits=True))
    assert not list((tmp_path / checkpoint_record.RECORD_FOLDER).iterdir())


def test_a_record_waits_for_the_first_checkpoint(tmp_path: Path) -> None:
    checkpoint_record.write_record(str(tmp_path), Record(step=8, scale_attn_logits=True))
    checkpoint_record.distribute_records(str(tmp_path))
    assert checkpoint_record.read_record(f"{tmp_path}/checkpoint_8") is not None


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/a/checkpoint_20", 20),
        ("gs://a/checkpoint_0/", 0),
        ("checkpoint_7", 7),
        ("/a/checkpoint_7/state", None),
        ("/a/checkpoint_7.tmp", None),
    ],
)
def test_the_step_in_a_name(path: str, step: int | None) -> None:
    assert run_folders.parse_checkpoint_step(path) == step


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("{", errors.DAMAGED, {"where": "rosetta.json"}),
        ('{"schema": 1, "step": 7, "colour": 1}', errors.DAMAGED, {"where": "rosetta.json"}),
        ('{"schema": 99}', errors.UNSUPPORTED, {"where": "rosetta.json"}),
    ],
)
def test_a_damaged_record_is_refused(
    tmp_path: Path, text: str, kind: str, facts: dict[str, Any]
) -> None:
    (_checkpoint(tmp_path, 7) / checkpoint_record.RECORD_FILE).write_text(text)
    with errors.expect_user_error(kind, **facts):
        checkpoint_record.read_record(f"{tmp_path}/checkpoint_7")


def test_a_checkpoint_belongs_to_the_run_in_its_record(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 1)
    _checkpoint(tmp_path, 2, "another run")
    assert not checkpoint_record.was_saved_by_run(
        str(tmp_path), 2
    )  # this folder's run has no name yet
    own = checkpoint_record.ensure_run_name(str(tmp_path))
    assert checkpoint_record.ensure_run_name(str(tmp_path)) == own
    _checkpoint(tmp_path, 3, own)
    assert [checkpoint_record.was_saved_by_run(str(tmp_path), step) for step in (1, 2, 3)] == [
        False,
        False,
        True,
    ]


def test_a_record_without_a_run_belongs_to_no_run(tmp_path: Path) -> None:
    (_checkpoint(tmp_path, 7) / checkpoint_record.RECORD_FILE).write_text(
        json.dumps({"schema": 1, "step": 7, "scale_attn_logits": False})
    )
    checkpoint_record.ensure_run_name(str(tmp_path))
    assert not checkpoint_record.was_saved_by_run(str(tmp_path), 7)


def test_folders_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    checkpoint_record.check_folder(str(tmp_path / "not" / "yet"))
    checkpoint_record.check_folder("gs://bucket/folder")
    with errors.expect_user_error(errors.INVALID, where="out", remedy="/"):
        checkpoint_record.check_folder("out")
    (tmp_path / "file").write_text("")
    with errors.expect_user_error(errors.INVALID, where="model"):
        checkpoint_record.check_folder(str(tmp_path / "file" / "model"))
    with errors.expect_user_error(
        errors.DENIED, where="/proc/model", value="/proc"
    ):  # by root neither
        checkpoint_record.check_folder("/proc/model")
    assert not list(tmp_path.glob("not"))


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    checkpoint_record.check_free_space(str(tmp_path / "not" / "yet"), 1)
    with errors.expect_user_error(errors.TOO_BIG, where=tmp_path, names="1000000000.0 GB"):
        checkpoint_record.check_free_space(str(tmp_path), 10**18)
