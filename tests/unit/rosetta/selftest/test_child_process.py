from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from rosetta.selftest import child_process
from rosetta.selftest.child_process import Context, Stopped
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

# Starts a child of its own, says who both are, and waits.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """True once `pid` has ended; a zombie that nobody has waited for yet has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_for(condition: object, *args: object) -> bool:
    for _ in range(600):
        if condition(*args):  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_environment_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--of_the_caller")
    log = tmp_path / "log"
    code = "import os; print([os.environ[k] for k in ('XLA_FLAGS', 'JAX_PLATFORMS', 'MINE')], os.getcwd())"
    status = child_process.run_process(
        Context(tmp_path, print), [sys.executable, "-c", code], log, env={"MINE": "x"}, timeout=60
    )
    assert status == 0
    assert log.read_text() == f"['', 'cpu', 'x'] {tmp_path}\n"


def test_a_timeout_returns_none_and_kills_all_children(tmp_path: Path) -> None:
    log = tmp_path / "log"

    status = child_process.run_process(
        Context(tmp_path, print), [sys.executable, "-c", FAMILY], log, env={}, timeout=3
    )
    assert status is None
    pids = [int(pid) for pid in log.read_text().split()]
    assert len(pids) == 2
    assert all(wait_for(gone, pid) for pid in pids)
    assert os.getpid() not in pids


def test_a_stop_kills_all_children(tmp_path: Path) -> None:
    log, context = tmp_path / "log", Context(tmp_path, print, threading.Event())

    def tick() -> None:
        if log.read_text().count(" "):
            context.stop.set()

    with pytest.raises(Stopped):
        child_process.run_process(
            context, [sys.executable, "-c", FAMILY], log, env={}, timeout=600, tick=tick
        )
    assert all(wait_for(gone, int(pid)) for pid in log.read_text().split())


@pytest.mark.parametrize(
    ("status", "words"),
    [(None, "did not end in time"), (3, "ended with status 3"), (-9, "was killed by SIGKILL")],
)
def test_describe_exit(status: int | None, words: str) -> None:
    assert child_process.describe_exit(status) == words


def test_read_log_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntwo\nthr\xffee\n")
    assert child_process.read_log_end(tmp_path / "log", 2) == "two\nthr\ufffdee"
    assert child_process.read_log_end(tmp_path / "none") == ""


def test_child_processes_see_the_cpu_or_the_first_gpu_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(child_process.PLATFORM_VARIABLE, raising=False)
    assert {
        name: child_process.make_environment(tmp_path)[name]
        for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
    } == {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    monkeypatch.setenv(child_process.PLATFORM_VARIABLE, "cuda")
    assert {
        name: child_process.make_environment(tmp_path)[name]
        for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
    } == {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert child_process.make_environment(tmp_path)["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in child_process.make_environment(tmp_path, all_gpus=True)
    monkeypatch.setenv(child_process.PLATFORM_VARIABLE, "tpu")
    with errors.expect_user_error(errors.INVALID, where="ROSETTA_SELFTEST_PLATFORM", value="tpu"):
        child_process.make_environment(tmp_path)
