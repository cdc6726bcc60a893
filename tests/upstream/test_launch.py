"""`rosetta run` with two processes of the real trainer on this machine's CPU: told to end early, and started again.

To be run by a baked environment's Python (build.py test --inside env:DIR). Two minutes on two cores for each framework.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Every value knows where it came from, and nothing is done twice. " * 40
SMALL = (
    "fdl.NUM_LAYERS=1",
    "fdl.NUM_HEADS=2",
    "fdl.MODEL_DIMS=32",
    "fdl.HIDDEN_DIMS=64",
    "fdl.DIMS_PER_HEAD=16",
    "fdl.MAX_SEQ_LEN=64",
    "fdl.CHECKPOINT_EVERY_N_STEPS=50",
    "fdl.SUMMARY_INTERVAL_STEPS=5",
)
RUNS = {
    "t5x": (
        "t5x-tiny",
        "ENC_SL=64",
        "DEC_SL=32",
        "PREC=float32",
        "BSIZE_PER_GPU=4",
        "MODEL_DIR=model",
    ),
    "paxml": (
        "gpt-126m",
        "--nodes=1",
        "PREC=float32",
        "PERCORE_BATCH_SIZE=2",
        "LOG_DIR=model",
        *SMALL,
    ),
}
STEPS = {"t5x": "TRAIN_STEPS={}", "paxml": "fdl.MAX_STEPS={}"}


@pytest.mark.parametrize("framework", RUNS)
def test_two_processes_end_early_and_go_on(framework: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"NOT TESTED: needs a baked environment of {framework}")
    program = tmp_path / "bin" / "rosetta"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m rosetta "$@"\n')
    program.chmod(0o755)
    (tmp_path / "text.txt").write_text(TEXT)

    def start(steps: int) -> subprocess.Popen[bytes]:
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "XLA", "JAX"))
        }
        environment = {
            **own,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "PYTHON": sys.executable,
        }
        words = [
            *(word for word in RUNS[framework] if not word.startswith("--")),
            f"DATA=text:{tmp_path}/text.txt",
            "VOCAB=byte" if framework == "t5x" else "VOCAB_PATH=byte",
            STEPS[framework].format(steps),
        ]
        argv = [
            str(program),
            "run",
            *words,
            *(word for word in RUNS[framework] if word.startswith("--")),
            "--gpus-per-node=2",
            "--processes=gpu",
        ]
        with (tmp_path / "said").open("ab") as out:
            return subprocess.Popen(argv, env=environment, cwd=tmp_path, stdout=out, stderr=out)

    def said() -> str:
        return (tmp_path / "said").read_text(errors="replace")

    started = start(100_000)
    until = time.monotonic() + 400
    while not re.search(r"^step [0-9,/]+  loss [0-9]", said(), re.MULTILINE):
        assert started.poll() is None, said()[-5000:]
        assert time.monotonic() < until, said()[-5000:]
        time.sleep(0.5)
    started.send_signal(signal.SIGUSR1)
    assert started.wait(200) == 75, said()[-5000:]
    assert "2 processes" in said()
    steps = [
        int(path.name.rpartition("_")[2])
        for path in (tmp_path / "model").rglob("checkpoint_*")
        if path.name.rpartition("_")[2].isdigit()
    ]
    assert max(steps) > 0
    again = start(max(steps) + 4)
    assert again.wait(400) == 0, said()[-5000:]
    later = [
        int(path.name.rpartition("_")[2])
        for path in (tmp_path / "model").rglob("checkpoint_*")
        if path.name.rpartition("_")[2].isdigit()
    ]
    assert max(later) == max(steps) + 4
