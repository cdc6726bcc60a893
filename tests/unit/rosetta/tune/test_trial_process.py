from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rosetta.tune.trial_process import TrialProcesses
from tests.support import process_state

ROOT = Path(__file__).resolve().parents[4]
TUNING = "import sys; from pathlib import Path; from rosetta.tune.trial_process import TrialProcesses; TrialProcesses(Path('logs'), 600).run(['sh', '-c', 'echo $$ > child.new; mv child.new child; exec sleep 600'], {'PATH': '/usr/bin:/bin'})"


def test_the_log_and_the_exit_status(tmp_path: Path) -> None:
    processes = TrialProcesses(tmp_path / "logs", 20)
    assert processes.run(
        ["sh", "-c", "echo out; echo $A >&2; exit 3"], {"PATH": os.environ["PATH"], "A": "err"}
    ) == (3, tmp_path / "logs/1.log")
    assert (tmp_path / "logs/1.log").read_text() == "out\nerr\n"
    with (tmp_path / "out").open("wb") as out:
        assert processes.run(["sh", "-c", "echo out; echo err >&2"], os.environ, out) == (
            0,
            tmp_path / "logs/2.log",
        )
    assert ((tmp_path / "out").read_text(), (tmp_path / "logs/2.log").read_text()) == (
        "out\n",
        "err\n",
    )
    assert TrialProcesses(tmp_path / "logs", 0.2).run(["sleep", "600"], os.environ) == (
        None,
        tmp_path / "logs/3.log",
    )


def test_a_trial_ends_when_the_tuning_is_killed(tmp_path: Path) -> None:
    tuning = subprocess.Popen(
        [sys.executable, "-P", "-c", TUNING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not (tmp_path / "child").exists():
        assert tuning.poll() is None
        time.sleep(0.05)
    tuning.kill()
    tuning.wait()
    assert process_state.wait_until_ended(int((tmp_path / "child").read_text()))
