"""Signals, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rosetta.core import log
from rosetta.health import stop_signals

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import sys, time
from rosetta.health import stop_signals
stop_signals.install_handlers()
print("ready", flush=True)
asked = []
if "late" in sys.argv:
    time.sleep(1)
stop_signals.set_stop_request(asked.append)
while not asked or "deaf" in sys.argv:
    time.sleep(0.01)
stop_signals.exit_with_line(f"ended by {asked[0]}")
"""


def _started(*words: str, terminal: int = -1) -> subprocess.Popen[str]:
    """A program that waits for signals, told of a terminal's file descriptor."""
    env = {**os.environ, log.TERMINAL_VARIABLE: str(terminal)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=ROOT,
        env=env,
        pass_fds=[terminal] if terminal > 0 else [],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
@pytest.mark.parametrize("when", [[], ["late"]])
def test_a_signal_asks_for_a_stop_even_before_anybody_listens(
    number: signal.Signals, when: list[str]
) -> None:
    process = _started(*when)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert err.splitlines() == [
        f"rosetta: {number.name}: the run ends after the running step, with a checkpoint; a second signal ends it at once",
        f"rosetta: ended by {number.name}",
    ]


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
def test_a_second_one_ends_it_at_once(number: signal.Signals) -> None:
    process = _started("deaf")
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(stop_signals.ECHO_SECONDS + 0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err == f"rosetta: {number.name} for the second time: ended at once\n"


def test_one_that_is_passed_on_as_well_is_no_second_one() -> None:
    process = _started("deaf")
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.poll() is None
    process.kill()
    _, err = process.communicate(timeout=60)
    assert err.splitlines() == [
        "rosetta: SIGINT: the run ends after the running step, with a checkpoint; a second signal ends it at once"
    ]


def test_it_is_said_on_the_terminal_too_and_to_nobody_where_all_have_gone() -> None:
    """Ctrl-C ends a `tee` that reads what we say."""
    reading, terminal = os.pipe()
    with _started(terminal=terminal) as process:
        os.close(terminal)
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 75
    with os.fdopen(reading) as lines:
        assert lines.read().splitlines() == [
            "rosetta: SIGINT: the run ends after the running step, with a checkpoint; a second signal ends it at once",
            "rosetta: ended by SIGINT",
        ]


def test_released_they_end_it_as_any_program() -> None:
    program = "from rosetta.health import stop_signals; import time; stop_signals.install_handlers(); stop_signals.restore_default_handlers(); print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


def test_what_is_still_to_be_written_is(tmp_path: Path) -> None:
    """`end` leaves atexit out; the line of the last batch is written all the same."""
    batches = "type('Batches', (), {'shard': 0, 'shards': 1, 'batch': 1})()"
    program = f"import numpy; from rosetta.data.batch_log import BatchLog; from rosetta.health import stop_signals; BatchLog({batches}).record(3, {{'a': numpy.zeros((1, 2))}}); stop_signals.exit_with_line('over')"
    log = tmp_path / "hashes"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "ROSETTA_BATCH_LOG": str(log)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 75, done.stderr
    assert '"step": 3' in log.read_text()
