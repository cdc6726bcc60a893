"""The row `run`: the first run of the README, in a process of its own.

The text is that of the self-test, because an environment has no files of the checkout.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rosetta.accept.records import Check, Measurement, Number
from rosetta.accept.setup import Case, Setup, make_case, require_packages
from rosetta.core import parent_death
from rosetta.core.errors import FAILED, MISSING, UserError
from rosetta.selftest import sample_text

# The settings of the README's run, and the loss that it falls below.
SETTINGS = ("VOCAB=byte", "LEARNING_RATE=5e-3", "ENC_SL=64", "DEC_SL=32")
STEPS, LOSS_LIMIT = 200, 3.0
# A tiny acceptance ends earlier, where the loss has only begun to fall.
TINY_STEPS, TINY_LOSS_LIMIT = 10, 6.0


def list_cases(setup: Setup) -> list[Case]:
    """Return the case of the row."""
    return [make_case("t5x-tiny", lambda: measure_run(setup))]


def measure_run(setup: Setup) -> Measurement:
    """Train, and read the progress of the run.

    Raises:
        SkipCase: T5X is not installed.
        UserError: The run failed.
    """
    require_packages("t5x")
    folder = Path.cwd()
    text = folder / "text.txt"
    sample_text.write_text(text)
    steps, limit = (TINY_STEPS, TINY_LOSS_LIMIT) if setup.tiny else (STEPS, LOSS_LIMIT)
    command = [
        *(sys.executable, "-P", "-m", "rosetta", "run", "t5x-tiny"),
        *(f"DATA=text:{text}", f"TRAIN_STEPS={steps}", f"MODEL_DIR={folder / 'model'}"),
        *SETTINGS,
    ]
    # The programs of an environment are beside its Python's folder.
    programs = Path(sys.prefix).with_name("bin")
    variables = {
        **os.environ,
        "PATH": os.pathsep.join((str(programs), os.environ.get("PATH", ""))),
        "ROSETTA_HOME": str(folder / "home"),  # `rosetta runs` does not list this run
    }
    # preexec_fn could deadlock with other threads, but it only calls prctl.
    tie = functools.partial(parent_death.die_with_parent, os.getpid(), signal.SIGKILL)
    status = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        env=variables,
        check=False,
        preexec_fn=tie,
    ).returncode
    if status:
        raise UserError(
            f"the run ended with status {status}", "accept", "see the log of the row", kind=FAILED
        )
    last = read_last_step(folder)
    loss = float(last["loss"])
    return Measurement(
        (
            Number("loss at the end", loss, ""),
            Number("rate", float(last["steps_per_second"]), "steps/s"),
        ),
        (Check("loss at the end", loss, limit), Check("steps missing", steps - last["step"], 0)),
    )


def read_last_step(folder: Path) -> dict[str, Any]:
    """Return the last line about training in the progress of a run below a folder.

    Raises:
        UserError: The run has not written one.
    """
    for progress in sorted(folder.rglob("progress.jsonl")):
        lines = [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]
        steps: list[dict[str, Any]] = [line for line in lines if "evaluation" not in line]
        if steps:
            return steps[-1]
    raise UserError("the run wrote no progress", "accept", "see the log of the row", kind=MISSING)
