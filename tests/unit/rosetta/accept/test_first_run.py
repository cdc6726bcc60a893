"""The row `run` of `rosetta accept`, with a stand-in for the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rosetta.accept import first_run
from tests.support import errors, process_state

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import os, sys
from pathlib import Path
from rosetta.accept import first_run, setup
first_run.require_packages = lambda *names: None
first_run.sample_text.write_text = lambda path: None
sys.executable = sys.argv[1]
machine = setup.Machine("cpu", "cpu", "0.0", 1, "", "", "")
first_run.measure_run(setup.Setup(machine, True, (), 1, False))
"""


def test_a_run_ends_with_the_process_of_its_row(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho $$ > child.new; mv child.new child; exec sleep 600\n")
    stand_in.chmod(0o755)
    row = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, str(stand_in)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not (tmp_path / "child").exists():
        assert row.poll() is None
    row.kill()
    row.wait()
    assert process_state.wait_until_ended(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("lines", [None, [], [{"step": 5, "evaluation": "x"}]], ids=str)
def test_a_run_without_progress_is_reported(
    tmp_path: Path, lines: list[dict[str, object]] | None
) -> None:
    if lines is not None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "progress.jsonl").write_text(text)
    with errors.expect_user_error(errors.MISSING, where="accept"):
        first_run.read_last_step(tmp_path)


def test_the_last_step_is_read(tmp_path: Path) -> None:
    lines = [{"step": 1}, {"step": 2}, {"step": 2, "evaluation": "x"}]
    (tmp_path / "run").mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "progress.jsonl").write_text(text)
    assert first_run.read_last_step(tmp_path) == {"step": 2}
