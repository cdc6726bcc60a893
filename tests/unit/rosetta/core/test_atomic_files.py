"""A file is written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from rosetta.core.atomic_files import is_temporary, replace_file, write_atomic


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomic(target, "old")
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY)
    )  # what a full disk looks like to a writer
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(target, "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize(("mode", "permissions"), [(0o644, 0o644), (0o755, 0o755), (None, 0o600)])
def test_the_mode_is_the_argument_or_that_of_the_umask(
    tmp_path: Path, mode: int | None, permissions: int
) -> None:
    target = tmp_path / "new" / "f"
    before = os.umask(0o077)
    try:
        write_atomic(target, "\u00e4\n", mode)
    finally:
        os.umask(before)
    assert target.read_bytes() == b"\xc3\xa4\n"
    assert stat.S_IMODE(target.stat().st_mode) == permissions


def test_another_program_may_write_the_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "f"
    with replace_file(target, 0o755) as new:
        assert is_temporary(new.name)
        assert new.parent == target.parent
        new.write_text("text")
        assert not target.exists()
    assert target.read_text() == "text"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    with contextlib.suppress(RuntimeError), replace_file(target) as new:
        new.write_text("half")
        raise RuntimeError
    assert target.read_text() == "text"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_that_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    target, left = tmp_path / "f", tmp_path / "f.part"
    left.write_text("x" * 100)
    write_atomic(target, "text", temporary=left, sync=True)
    assert target.read_text() == "text"
    assert list(tmp_path.iterdir()) == [target]
