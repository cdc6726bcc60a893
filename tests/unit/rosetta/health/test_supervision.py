"""A run's health without JAX: losses that turn bad, steps that do not come, in a process of its own where it ends."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rosetta.health import stop_signals, supervision, watchdog
from rosetta.health.barrier import StepBarrier
from rosetta.health.key_value_store import LocalStore
from rosetta.health.step_failure import StepFailedError
from rosetta.health.step_tracking import StepTracker
from rosetta.health.supervision import DumpSource, RunStopped, Supervisor
from rosetta.health.supervision_settings import read_settings

ROOT = Path(__file__).resolve().parents[4]
NOTHING = DumpSource(lambda _: None, dict)


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    monkeypatch.setattr(stop_signals, "_set_handlers", lambda _: None)
    made: list[Supervisor] = []

    def make(**settings: object) -> Supervisor:
        changed = dataclasses.replace(read_settings({}), **settings)  # type: ignore[arg-type]
        made.append(Supervisor(str(tmp_path), changed, 0, 1, NOTHING))
        return made[-1]

    yield make
    for each in made:
        each.close()
    supervision._current = None


def _train(health: Supervisor, losses: list[float]) -> int:
    for step, loss in enumerate(losses):
        health.before_step(step)
        health.track_step(step, lambda loss=loss: loss)  # type: ignore[misc]
        health.step_tracker.wait_for_all()
    return len(losses)


def test_a_bad_loss_stops_the_run_before_the_next_step(health: Callable[..., Supervisor]) -> None:
    with pytest.raises(RunStopped) as raised:
        _train(health(), [3.0, 2.0, math.nan, 1.0, 1.0])
    assert raised.value.step == 3
    assert raised.value.bad_step is not None
    assert raised.value.bad_step.step == 2


def test_no_checkpoint_is_written_after_a_bad_step(health: Callable[..., Supervisor]) -> None:
    made = health()
    _train(made, [3.0, 2.0])
    made.before_checkpoint(2, lambda: True)
    made.track_step(2, lambda: math.inf)  # it is not yet known to be bad when the checkpoint comes
    with pytest.raises(RunStopped) as raised:
        made.before_checkpoint(3, lambda: True)
    assert raised.value.bad_step is not None


def test_nor_one_of_parameters_that_are_not_finite(health: Callable[..., Supervisor]) -> None:
    made = health()
    _train(made, [3.0, 2.0])
    with pytest.raises(RunStopped) as raised:
        made.before_checkpoint(2, lambda: False)
    assert raised.value.bad_step is not None
    assert raised.value.bad_step.why == "it left parameters that are not finite"
    health(on_bad_loss="ignore").before_checkpoint(2, lambda: False)


def test_a_skipped_step_is_said_and_too_many_of_them_stop_the_run(
    health: Callable[..., Supervisor], capsys: pytest.CaptureFixture[str]
) -> None:
    made = health(on_bad_loss="skip")
    assert _train(made, [3.0, math.nan, 2.0, math.nan, 2.0]) == 5
    first, second = capsys.readouterr().err.splitlines()
    for step, line in ((1, first), (3, second)):
        assert line.startswith(f"rosetta: step {step}: ")
        assert "nan" in line
    with pytest.raises(RunStopped):
        _train(made, [math.nan] * 20)


def test_a_spike_is_said_and_not_skipped(
    health: Callable[..., Supervisor], capsys: pytest.CaptureFixture[str]
) -> None:
    made = health(on_bad_loss="skip", spike=3.0)
    _train(made, [2.0] * 30 + [9.0, 2.0])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rosetta: step 30: ")
    assert "update stays" in line


def test_what_is_ignored_is_ignored(health: Callable[..., Supervisor]) -> None:
    assert _train(health(on_bad_loss="ignore"), [3.0, math.nan, math.nan]) == 3


def test_a_signal_stops_it_with_a_checkpoint(health: Callable[..., Supervisor]) -> None:
    made = health()
    made._stop_barrier.request("SIGTERM")
    with pytest.raises(RunStopped) as raised:
        _train(made, [3.0])
    assert raised.value.bad_step is None
    assert raised.value.reason == "SIGTERM"


PROGRAM = """
import sys, time
from rosetta.health.supervision import Supervisor, DumpSource
from rosetta.health.supervision_settings import read_settings
health = Supervisor(sys.argv[1], read_settings({"WATCHDOG_SECONDS": "1", "WATCHDOG_STEPS": "2"}), 0, 1, DumpSource(lambda step: {"hash": "ab"}, lambda: {"k": [0.5]}))
def hangs():
    time.sleep(600)
health.begin_steps()
for step in range(10):
    health.track_step(step, lambda: (time.sleep(0.05), 1.0)[1])
    health.step_tracker.wait_for_all()
if sys.argv[2] == "pause":  # an evaluation, which may take its time
    health.end_steps()
    time.sleep(4)
elif sys.argv[2] == "hang":
    health.track_step(10, hangs)
    time.sleep(600)
elif sys.argv[2] == "paused":  # a checkpoint between two reports, and a hang after it
    from rosetta.health import supervision
    with supervision.pause_watchdog():
        time.sleep(4)
        print("saved", flush=True)
    time.sleep(600)
else:
    from rosetta.health.supervision import RunStopped
    try:
        health.track_step(10, lambda: float("nan"))
        health.step_tracker.wait_for_all()
        health.before_step(11)
    except RunStopped as stopped:
        if sys.argv[2] == "unwritable":
            open(sys.argv[1] + "/bad_step_10", "x")
        from rosetta.errors import UserError
        from rosetta.health import supervision
        def finish():
            raise UserError("checkpoint 9 is not written", "/m", "make room")
        supervision.end_if_stopped(finish if sys.argv[2] == "full" else lambda: sys.argv[1])
"""


def _ended(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_stands_still_ends_with_its_stacks(tmp_path: Path) -> None:
    done = _ended(tmp_path, "hang")
    assert done.returncode == 200
    assert "rosetta: no step " in done.stderr
    assert "in hangs" in (tmp_path / "stacks" / "rank-0000.txt").read_text()


def test_what_is_no_step_may_take_its_time(tmp_path: Path) -> None:
    done = _ended(tmp_path, "pause")
    assert (done.returncode, done.stderr) == (0, "")


def test_after_a_pause_the_run_is_watched_again(tmp_path: Path) -> None:
    done = _ended(tmp_path, "paused")
    assert done.returncode == 200
    assert done.stdout == "saved\n"
    assert "rosetta: no step " in done.stderr


def test_a_bad_step_is_written_down_and_ends_it_with_1(tmp_path: Path) -> None:
    done = _ended(tmp_path, "bad")
    assert done.returncode == 1
    assert done.stderr.startswith("rosetta: step 10: ")
    assert "nan" in done.stderr
    assert json.loads((tmp_path / "bad_step_10" / "loss.json").read_text())["step"] == 10
    assert json.loads((tmp_path / "bad_step_10" / "batch-0000.json").read_text()) == {"hash": "ab"}
    assert json.loads((tmp_path / "bad_step_10" / "fp8.json").read_text()) == {"k": [0.5]}


def test_a_bad_step_that_cannot_be_written_down_ends_it_in_one_line_too(tmp_path: Path) -> None:
    done = _ended(tmp_path, "unwritable")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "nan" in done.stderr
    assert "cannot be written (" in done.stderr


def test_a_bad_step_is_written_down_where_a_checkpoint_before_it_found_no_room(
    tmp_path: Path,
) -> None:
    done = _ended(tmp_path, "full")
    assert done.returncode == 1
    assert done.stderr.startswith("rosetta: /m: checkpoint 9 ")
    assert (tmp_path / "bad_step_10" / "loss.json").is_file()


FAILS = """
import sys
from rosetta.health import supervision
from rosetta.health.supervision import Supervisor, DumpSource
from rosetta.health.supervision_settings import read_settings

class XlaRuntimeError(RuntimeError):
    pass

TEXT = {
    "memory": "INTERNAL: Error dispatching computation: Error dispatching computation: Out of memory allocating 237 bytes.",
    "gpu": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 237 bytes.",
    "device": "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
}[sys.argv[2]]
health = Supervisor(sys.argv[1], read_settings({}), 0, 1, DumpSource(lambda step: None, dict))
def fails():
    raise XlaRuntimeError(TEXT)
try:
    for step in range(1000):
        health.before_step(step)
        health.track_step(step, (lambda: 1.0) if step < 3 else fails)
    print("all were given")
except Exception as error:
    supervision.end_if_stopped(lambda: sys.argv[1])
    finish = lambda: print("saves", file=sys.stderr)
    supervision.end_if_step_failed(error, "take a smaller batch", finish)
    raise
"""


@pytest.mark.parametrize(
    ("how", "code", "facts"),
    [
        (
            "memory",
            2,
            ("step 3: ", "allocating 237 bytes)"),
        ),
        (
            "gpu",
            2,
            ("step 3: ", "allocate 237 bytes)"),
        ),
        (
            "device",
            1,
            ("step 3 ", "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: "),
        ),
    ],
)
def test_a_step_that_fails_on_the_device_ends_the_run_in_one_line(
    tmp_path: Path, how: str, code: int, facts: tuple[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS, str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    waited, line = done.stderr.splitlines()
    assert waited == "saves"
    assert line.startswith(f"rosetta: {facts[0]}")
    assert facts[1] in line


def test_a_failed_step_is_noticed_before_a_checkpoint_and_a_stop(
    health: Callable[..., Supervisor],
) -> None:
    for ask in (
        lambda made: made.before_checkpoint(1, lambda: True),
        lambda made: (made._stop_barrier.request("SIGTERM"), made.before_step(1)),
    ):
        made = health()
        made.track_step(0, lambda: 1 / 0)
        with pytest.raises(StepFailedError) as raised:
            ask(made)
        assert raised.value.step == 0


def test_the_training_never_gives_more_than_a_bounded_number_of_steps_ahead(
    health: Callable[..., Supervisor],
) -> None:
    made, over = health(), threading.Event()
    given = 0

    def train() -> None:
        nonlocal given
        for step in range(100):
            made.before_step(step)
            made.track_step(step, lambda: over.wait(60) and 1.0)
            given += 1

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(0.5)
    assert given <= supervision._MAX_STEPS_IN_FLIGHT
    over.set()
    thread.join(60)
    assert given == 100


STOPS = """
import sys
from rosetta.health import supervision
from rosetta.health.supervision import Supervisor, DumpSource, RunStopped
from rosetta.health.supervision_settings import read_settings
health = Supervisor(sys.argv[1], read_settings({}), 0, 1, DumpSource(lambda step: None, dict))
health._stop_barrier.request("SIGTERM")
try:
    health.before_step(15)
except RunStopped:
    supervision.end_if_stopped(lambda: sys.argv[1])
"""


def test_written_is_said_of_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    def stops() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", STOPS, str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stderr

    older = tmp_path / "checkpoint_0" / "checkpoint"
    older.parent.mkdir()
    older.write_bytes(b"")
    assert stops() == (
        1,
        f"rosetta: ended by SIGTERM before step 15, and its checkpoint is not written: {tmp_path} has no checkpoint of step 15, its newest one is of step 0\n",
    )
    marks = tmp_path / "checkpoint_00000015" / "metadata" / "metadata"  # as Paxml names it
    marks.parent.mkdir(parents=True)
    (tmp_path / "checkpoint_00000015" / "checkpoint").write_bytes(b"")
    marks.write_text('{"vers')
    assert stops() == (
        1,
        f"rosetta: ended by SIGTERM before step 15, and its checkpoint is not written: {marks}: the file is cut short or not JSON\n",
    )
    marks.write_text('{"version": 1.1}')
    assert stops() == (
        75,
        "rosetta: ended by SIGTERM before step 15: its checkpoint is written, and the next start resumes from it\n",
    )


def _make_watchdogs(store: LocalStore, folder: Path, ranks: int) -> list[watchdog.Watchdog]:
    watchdogs = []
    for rank in range(ranks):
        each = watchdog.Watchdog(
            store,
            rank,
            ranks,
            str(folder),
            read_settings({}),
            StepTracker(lambda *_: None),
            lambda: False,
            (),
        )
        each._store.put(f"who/{rank}", f"node{rank}, pid {100 + rank}")
        each._heartbeat_count = 1  # the first heartbeat would write the name of this machine
        watchdogs.append(each)
    return watchdogs


def test_a_process_without_heartbeats_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first, second, third = _make_watchdogs(LocalStore(), tmp_path, 3)
    for count in range(40):
        now[0] += 1.0
        for each in (first, second, *((third,) if count < 5 else ())):
            each._exchange_heartbeats()
    assert first.find_silent(4.0) == [2]
    assert first.describe_process(2) == "rank 2 (node2, pid 102)"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rosetta: rank 2 (node2, pid 102) ")
    assert " 30 s: " in line


def test_a_process_that_is_behind_is_named(tmp_path: Path) -> None:
    first, second = _make_watchdogs(LocalStore(), tmp_path, 2)
    first._step_tracker.dispatched, second._step_tracker.dispatched = 12, 11
    for each in (second, first):
        each._exchange_heartbeats()
    assert (
        first._describe_cause([])
        == "rank 1 (node1, pid 101) is behind all others: its input or its host holds it up"
    )


def test_stacks_are_written_when_another_asks(tmp_path: Path) -> None:
    store = LocalStore()
    _, second = _make_watchdogs(store, tmp_path, 2)
    store.put("stacks/0", "now")
    second._exchange_heartbeats()
    assert "rank 1 of 2" in (tmp_path / "stacks" / "rank-0001.txt").read_text()


def test_an_answer_that_is_waited_for_holds_up_neither_heartbeats_nor_other_barriers(
    tmp_path: Path,
) -> None:
    store = LocalStore()
    made = []
    for rank, names in enumerate((("save", "stop"), ("stop", "save"))):
        barriers = [StepBarrier(name, store, rank, 3) for name in names]
        barriers[0].request("each asks for another one first")
        each = watchdog.Watchdog(
            store,
            rank,
            3,
            str(tmp_path),
            read_settings({}),
            StepTracker(lambda *_: None),
            lambda: False,
            barriers,
        )
        each.interval = 0.01
        each.start()
        made.append(each)
    end = time.monotonic() + 30
    while [len(store.list_folder(f"{name}/0/steps")) for name in ("save", "stop")] != [2, 2] or int(
        store.list_folder("signs").get("0", "0").split()[0]
    ) < 5:
        assert time.monotonic() < end, (
            "the third process, which is gone, is waited for before all else"
        )
        time.sleep(0.01)
    for each in made:
        each.close()


def test_a_slow_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_signals, "_set_handlers", lambda _: None)
    store = LocalStore()
    monkeypatch.setattr("rosetta.health.key_value_store.open_store", lambda _: store)
    both = [Supervisor(str(tmp_path), read_settings({}), rank, 2, NOTHING) for rank in range(2)]
    both[0].watchdog._process_names = {0: "node0", 1: "node1"}
    both[0].step_tracker._durations.append(0.5)
    both[1].publish_input_wait(10, 0.4)
    values, notes = both[0].collect_report(10, 5.0, 0.01)
    assert (values["host_wait_median"], values["host_wait_max"], values["host_wait_rank"]) == (
        0.01,
        0.4,
        1,
    )
    assert notes[-1] == "rank 1 (node1) is slow: its input takes 0.4 s a step, of the others 0.01 s"
    both[1].publish_input_wait(20, 0.012)
    assert len(both[0].collect_report(20, 5.0, 0.01)[1]) == 1  # goodput alone
    for each in both:
        each.close()
