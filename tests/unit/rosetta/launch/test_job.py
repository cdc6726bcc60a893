"""job.sh with an srun that behaves as a step does: it passes on signals, and ends as its processes do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rosetta.launch import slurm

SRUN = """#!/bin/bash
trap 'echo USR1 >> told' USR1
trap 'echo TERM >> told' TERM
printf '%s\\0' "$@" > words
touch ready
for _ in {1..600}; do [[ -e told || -n ${AT_ONCE:-} ]] && break; sleep 0.05; done
[[ -z ${SLOW:-} ]] || sleep 1
exit "${STATUS:-0}"
"""


def run(
    folder: Path, *signals: signal.Signals, words: tuple[str, ...] = ("a", "b c"), **variables: str
) -> int:
    (folder / "srun").write_text(SRUN)
    (folder / "scontrol").write_text('#!/bin/sh\necho "$*" > requeued\n')
    for name in ("srun", "scontrol"):
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "42",
        **({} if signals else {"AT_ONCE": "1"}),
        **variables,
    }
    started = subprocess.Popen(
        ["bash", str(slurm.SCRIPT), *words], cwd=folder, env=environment, stderr=subprocess.DEVNULL
    )
    for number in signals:
        until = time.monotonic() + 60
        while not (folder / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(started.pid, number)
    return started.wait(60)


def test_words_arrive(tmp_path: Path) -> None:
    words = ("two words", "$(touch pwned)", "new\nline", "", "`x`", "-n", "*")
    assert run(tmp_path, words=words) == 0
    assert (tmp_path / "words").read_text() == "".join(f"{word}\0" for word in words)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("status", [0, 1, 75, 137])
def test_the_status_is_the_steps(tmp_path: Path, status: int) -> None:
    assert run(tmp_path, STATUS=str(status), REQUEUE="1") == status
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("requeue", ["1", "0"])
def test_after_a_process_was_lost_it_is_started_again_where_that_is_wanted(
    tmp_path: Path, requeue: str
) -> None:
    assert run(tmp_path, STATUS="200", REQUEUE=requeue) == 200
    assert (tmp_path / "requeued").exists() == (requeue == "1")


@pytest.mark.parametrize("slow", ["", "1"])
@pytest.mark.parametrize(
    ("number", "status", "requeue", "again"),
    [
        (signal.SIGUSR1, 75, "1", True),
        (signal.SIGUSR1, 75, "0", False),
        (signal.SIGUSR1, 1, "1", False),
        (signal.SIGUSR1, 0, "1", False),
        (signal.SIGTERM, 75, "1", False),
    ],
)
def test_signals(
    tmp_path: Path, number: signal.Signals, status: int, requeue: str, slow: str, *, again: bool
) -> None:
    """Passed on as USR1, since srun kills its step when it gets TERM; the end of the step is waited for; at the time limit a run that ended early is started again."""
    assert run(tmp_path, number, STATUS=str(status), REQUEUE=requeue, SLOW=slow) == status
    assert (tmp_path / "told").read_text() == "USR1\n"
    assert (tmp_path / "requeued").exists() == again
    if again:
        assert (tmp_path / "requeued").read_text() == "requeue 42\n"
