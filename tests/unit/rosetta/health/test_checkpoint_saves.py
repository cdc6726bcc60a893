"""Checkpoints that find no room; a small file system is really full where one can be mounted."""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rosetta.core.errors import UserError
from rosetta.health import checkpoint_files
from rosetta.health.checkpoint_saves import DiskFullError, SaveTracker, is_disk_full
from tests.support import errors


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("NOT TESTED: no file system can be mounted here; run it as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _write(folder: Path, step: int, size: int) -> bool:
    half = folder / f"checkpoint_{step}.orbax-checkpoint-tmp-1"
    half.mkdir()
    (half / "checkpoint").write_bytes(b"")  # in T5X's format before Orbax, one file is enough
    (half / "array").write_bytes(bytes(size))
    half.rename(folder / f"checkpoint_{step}")
    return True


def test_one_is_left_out_and_the_next_one_counts(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saves = SaveTracker(str(small), "once", speaks=True)
    assert saves.save(10, lambda: _write(small, 10, 20_000)) is True
    assert saves.save(20, lambda: _write(small, 20, 100_000)) is None
    assert [path.name for path in small.iterdir()] == ["checkpoint_10"]  # and nothing half
    assert saves.save(30, lambda: _write(small, 30, 1_000)) is True
    saves.finish()
    assert saves.save(40, lambda: _write(small, 40, 100_000)) is None  # not the second one in a row
    with errors.expect_user_error(errors.FAILED, where="small", value=40):
        saves.finish()
    with errors.expect_user_error(errors.FAILED, where="small", value=50):
        saves.save(50, lambda: _write(small, 50, 100_000))
    err = capsys.readouterr().err
    assert err.count("goes on") == 2


def test_the_first_one_ends_the_run_where_that_is_wanted(small: Path) -> None:
    with errors.expect_user_error(errors.FAILED, where="small", value=20):
        SaveTracker(str(small), "stop", speaks=True).save(20, lambda: _write(small, 20, 100_000))


def test_other_errors_are_no_full_disk(tmp_path: Path) -> None:
    def fails() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        SaveTracker(str(tmp_path), "once", speaks=True).save(1, fails)


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "x"), True),
        (OSError(errno.EDQUOT, "x"), True),
        (
            ValueError(
                "RESOURCE_EXHAUSTED: Error writing local file: No space left on device [OS error: 28]"
            ),
            True,
        ),
        (DiskFullError("a checkpoint takes 2.0 GB, and 1.0 GB are free", "/m", "make room"), True),
        (UserError("the path is relative", "/m", "give it whole"), False),
        (ValueError("shape"), False),
    ],
)
def test_what_a_full_disk_looks_like(error: Exception, is_full: bool) -> None:
    assert is_disk_full(error) is is_full
    assert is_disk_full(RuntimeError("the save failed")) is False


def test_how_long_it_took_is_said_once_it_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saves = SaveTracker(str(tmp_path), "once", speaks=True)
    saves.watch_save(10, time.monotonic() - 5, 1.5)
    assert saves.take_durations() == {}
    _write(tmp_path, 10, 1)
    end = time.monotonic() + 60
    while not (told := saves.take_durations()):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert told["save_seconds"] >= 5
    assert told["save_stall"] == 1.5
    assert "checkpoint 10 is complete" in capsys.readouterr().err
    assert saves.take_durations() == {}


def test_the_end_waits_for_what_is_said_of_the_last_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = checkpoint_files.find_problem

    def slow(folder: str, step: int) -> str | None:
        time.sleep(0.3)
        return looked(folder, step)

    monkeypatch.setattr(checkpoint_files, "find_problem", slow)
    saves = SaveTracker(str(tmp_path), "once", speaks=True)
    _write(tmp_path, 10, 1)
    saves.watch_save(10, time.monotonic(), 0.0)
    saves.watch_save(20, time.monotonic(), 0.0)  # it never comes: nothing waits for it
    saves.finish()
    assert [thread.name for thread in threading.enumerate() if thread.name == "rosetta-save"] == []
    assert capsys.readouterr().err.count("is complete") == 1
