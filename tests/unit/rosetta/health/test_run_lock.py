"""Two runs in one folder: who is refused, who takes over, and who holds it no more."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_folders
from rosetta.core.errors import UserError
from rosetta.health import key_value_store, run_lock, shared_run_lock, stop_signals
from rosetta.health.run_lock import LOCK_FILE, Holder, acquire_lock
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]
ELSEWHERE = Holder(
    "ab", "node7", "another boot", 12, "pid:[1]", "99", "2026-01-01 10:00 UTC", "77", 0
)
HOLDS = """
import sys, time
from rosetta.health import run_lock
run_lock.acquire_lock(sys.argv[1], "MODEL_DIR", {"SLURM_JOB_ID": "5"})
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run_lock, "POLL_INTERVAL", 0.02)
    monkeypatch.setattr(stop_signals, "_exit_functions", [])
    yield
    for lock in list(run_lock._held_locks.values()):
        lock.release()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run in another process that holds the folder."""
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "held\n"
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def _left_behind(folder: Path, holder: Holder, signs: int = 3) -> None:
    (folder / LOCK_FILE).write_text(
        json.dumps({"holder": dataclasses.asdict(holder), "signs": signs})
    )


def test_a_live_run_is_named_at_once(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    for enter in (
        lambda: acquire_lock(str(tmp_path), "MODEL_DIR", {}, lease=600),
        lambda: run_lock.check_not_in_use(str(tmp_path), "MODEL_DIR"),
    ):
        with pytest.raises(UserError) as raised:
            enter()
        assert raised.value.where == str(tmp_path)
        assert f", process {other.pid}, Slurm job 5, since " in raised.value.what
        assert raised.value.do.endswith("MODEL_DIR")


@pytest.mark.parametrize("without_locks", [False, True])
def test_a_killed_run_holds_it_no_more(
    tmp_path: Path,
    other: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    without_locks: bool,
) -> None:
    if without_locks:
        monkeypatch.setattr(run_lock, "_try_kernel_lock", lambda _: None)
    other.send_signal(signal.SIGKILL)
    other.wait()
    run_lock.check_not_in_use(str(tmp_path), "MODEL_DIR")
    acquire_lock(str(tmp_path), "MODEL_DIR", {}, lease=600)


def test_one_that_ends_gives_it_free(tmp_path: Path) -> None:
    acquire_lock(str(tmp_path), "MODEL_DIR", {}).release()
    assert list(tmp_path.iterdir()) == []
    acquire_lock(str(tmp_path), "MODEL_DIR", {})
    stop_signals.run_exit_functions()  # as every end with one line does
    assert list(tmp_path.iterdir()) == []


def test_a_process_takes_it_once(tmp_path: Path) -> None:
    assert acquire_lock(str(tmp_path), "MODEL_DIR", {}) is acquire_lock(
        f"{tmp_path}/", "MODEL_DIR", {}
    )


@pytest.mark.parametrize("lock", [True, None])
@pytest.mark.parametrize(
    ("environment", "at_once"),
    [
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}, True),  # the same job, requeued
        ({"SLURM_JOB_ID": "77"}, False),
        ({"SLURM_JOB_ID": "78", "SLURM_RESTART_COUNT": "1"}, False),
        ({}, False),
    ],
)
def test_a_silent_run_of_another_machine_is_taken_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lock: bool | None,
    environment: dict[str, str],
    at_once: bool,
) -> None:
    monkeypatch.setattr(run_lock, "_try_kernel_lock", lambda _: lock)
    _left_behind(tmp_path, ELSEWHERE)
    acquire_lock(str(tmp_path), "MODEL_DIR", environment, lease=0.1)
    said = capsys.readouterr().err
    assert ("waiting up to" in said) is not at_once
    assert "taken over" in said
    assert "host node7, process 12, Slurm job 77, since 2026-01-01 10:00 UTC" in said


@pytest.mark.parametrize("lock", [True, False, None])
def test_a_run_of_another_machine_that_gives_signs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: bool | None
) -> None:
    monkeypatch.setattr(run_lock, "_try_kernel_lock", lambda _: lock)
    _left_behind(tmp_path, ELSEWHERE)
    over = threading.Event()

    def live() -> None:
        for signs in range(4, 10_000):
            if over.wait(0.02):
                return
            _left_behind(tmp_path, ELSEWHERE, signs)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with errors.expect_user_error(errors.IN_USE, where=tmp_path):
            acquire_lock(str(tmp_path), "MODEL_DIR", {}, lease=600)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"holder": {}, "signs": 1}'])
def test_a_file_that_names_nobody_is_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_FILE).write_text(text)
    acquire_lock(str(tmp_path), "MODEL_DIR", {}, lease=600)
    run_lock.check_not_in_use(str(tmp_path / "missing"), "MODEL_DIR")


ENDS = """
import sys, time
from rosetta.health import run_lock
run_lock.acquire_lock(sys.argv[1], "MODEL_DIR", {}).start(0.01)
print("held", flush=True)
time.sleep(600)
"""


def test_a_run_that_was_taken_over_ends(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", ENDS, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "held\n"
    text = json.dumps({"holder": dataclasses.asdict(ELSEWHERE), "signs": 1}).ljust(1024)
    file = os.open(tmp_path / LOCK_FILE, os.O_WRONLY)
    end = time.monotonic() + 60
    while started.poll() is None:
        os.pwrite(file, text.encode(), 0)  # a sign of the other may come between
        assert time.monotonic() < end
        time.sleep(0.001)
    os.close(file)
    assert started.returncode == 1
    assert (
        "another run has taken the folder over (host node7, process 12" in started.communicate()[1]
    )
    assert (tmp_path / LOCK_FILE).is_file()  # it is the other one's


def test_all_processes_learn_of_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[str]
) -> None:
    shared = key_value_store.LocalStore()
    monkeypatch.setattr(key_value_store, "open_store", lambda _: shared)
    raised: list[str] = []

    def enter(rank: int) -> None:
        try:
            shared_run_lock.acquire_shared_lock(str(tmp_path), "MODEL_DIR", {}, rank, 3)
        except UserError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(raised) == 3
    assert len(set(raised)) == 1
    assert f"process {other.pid}" in raised[0]


def test_an_error_of_the_file_system_ends_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = key_value_store.LocalStore()
    monkeypatch.setattr(key_value_store, "open_store", lambda _: shared)
    folder = tmp_path / "a file"
    folder.write_text("")
    with pytest.raises(OSError, match=str(folder)):
        shared_run_lock.acquire_shared_lock(str(folder), "MODEL_DIR", {}, 0, 2)
    with errors.expect_user_error(errors.FAILED, where=folder):
        shared_run_lock.acquire_shared_lock(str(folder), "MODEL_DIR", {}, 1, 2)


class _Store:
    """An object store: whole files, no locks."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def path(self, name: str) -> Any:
        store = self

        class Path:
            def exists(self) -> bool:
                return name in store.files

            def read_text(self) -> str:
                return store.files[name]

            def write_text(self, text: str) -> None:
                store.files[name] = text

            def unlink(self) -> None:
                del store.files[name]

        return Path()


def test_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Store()
    monkeypatch.setattr(run_folders, "make_path", store.path)
    lock = acquire_lock("gs://bucket/run", "MODEL_DIR", {}, lease=0.1)
    assert list(store.files) == [f"gs://bucket/run/{LOCK_FILE}"]
    holder = Holder(**json.loads(store.files[f"gs://bucket/run/{LOCK_FILE}"])["holder"])
    lock.release()
    assert store.files == {}
    gone = dataclasses.asdict(
        dataclasses.replace(holder, pid=999999999)
    )  # a process of this machine
    store.files[f"gs://bucket/run/{LOCK_FILE}"] = json.dumps({"holder": gone, "signs": 1})
    acquire_lock("gs://bucket/run", "MODEL_DIR", {}, lease=600).release()
    store.files[f"gs://bucket/run/{LOCK_FILE}"] = json.dumps(
        {"holder": dataclasses.asdict(ELSEWHERE), "signs": 3}
    )
    acquire_lock("gs://bucket/run", "MODEL_DIR", {}, lease=0.1).release()
