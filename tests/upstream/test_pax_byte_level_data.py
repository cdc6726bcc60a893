"""A GPT of Pax trains on the ids of a byte-level tokenizer.json, whose id 0 is text.

To be run by a baked environment's Python (build.py test --inside env:DIR).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosetta.core import run_folders
from tests.support import byte_level_tokenizer

paxml = pytest.importorskip("paxml", reason="NOT TESTED: needs a baked environment of pax")

pytestmark = pytest.mark.upstream

LENGTH, BATCH, STEPS, SAVED = 16, 8, 1600, 200
FIELDS = {
    "NUM_LAYERS": 1,
    "NUM_HEADS": 2,
    "MODEL_DIMS": 32,
    "HIDDEN_DIMS": 64,
    "DIMS_PER_HEAD": 16,
    "VOCAB_SIZE": 384,
    "MAX_SEQ_LEN": LENGTH,
    "LEARNING_RATE": 1e-2,
    "LR_COS_WARMUP": 5,
    "SUMMARY_INTERVAL_STEPS": 50,
    "CHECKPOINT_EVERY_N_STEPS": SAVED,
}


def _start(folder: Path, run: str) -> subprocess.Popen[bytes]:
    """Start a training of STEPS steps in `folder`, with the log folder `run`, and a log beside."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "XLA", "JAX", "ROSETTA"))
    }
    variables |= {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ROSETTA_BATCH_LOG": str(folder / f"{run}.hashes"),
    }
    words = [
        *("pax", "pile", f"LOG_DIR={folder / run}", "NUM_GPUS=1"),
        *(f"DATA=text:{folder}/marks.txt", f"VOCAB_PATH={folder}/gpt2", "PREC=float32"),
        *(f"PERCORE_BATCH_SIZE={BATCH}", f"MAX_STEPS={STEPS}"),
        *(f"fdl.{name}={value}" for name, value in FIELDS.items()),
    ]
    with (folder / f"{run}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rosetta", *words],
            env=variables,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _read_losses(folder: Path) -> dict[int, float]:
    if not (folder / "progress.jsonl").exists():
        return {}
    text = (folder / "progress.jsonl").read_text()
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return {line["step"]: line["loss"] for line in lines}


def _run(folder: Path, run: str) -> None:
    """Start a training and wait for its end."""
    status = _start(folder, run).wait(timeout=1200)
    assert status == 0, (folder / f"{run}.log").read_text(errors="replace")[-4000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer, and a text of letters and exclamation marks."""
    path = tmp_path_factory.mktemp("run")
    byte_level_tokenizer.write_folder(path / "gpt2", ["some words of text"], size=300)
    rng = np.random.default_rng(0)
    # Half of the tokens are id 0, at random, so each costs log(2) whatever the model learns.
    letters = rng.choice(list("!q"), size=40_000)
    (path / "marks.txt").write_text("".join(letters))
    return path


@pytest.fixture(scope="module")
def trained(folder: Path) -> dict[int, float]:
    """Return the losses of a run that was not interrupted."""
    _run(folder, "whole")
    return _read_losses(folder / "whole")


def test_the_loss_counts_id_0(folder: Path, trained: dict[int, float]) -> None:
    """The loss of coin flips is log(2) for each token.

    If id 0 were padding, only the letter would be left to predict, and the loss would fall to 0.
    """
    assert max(trained) == STEPS
    assert trained[STEPS] == pytest.approx(np.log(2), abs=0.05)
    lines = [json.loads(line) for line in (folder / "whole" / "progress.jsonl").open()]
    rate = lines[-1]["tokens_per_second"] / lines[-1]["steps_per_second"]
    assert rate == pytest.approx(BATCH * LENGTH)


def test_killed_and_continued_is_the_same_run(folder: Path, trained: dict[int, float]) -> None:
    process = _start(folder, "killed")
    run, end = folder / "killed", time.monotonic() + 900
    while (
        SAVED not in run_folders.list_checkpoint_steps(str(run / "checkpoints"))
        or max(_read_losses(run), default=0) <= SAVED
    ):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert max(_read_losses(run)) < STEPS, "it was done before it was killed: train for longer"
    _run(folder, "killed")
    assert _read_losses(run) == pytest.approx(trained, rel=1e-6)

    def read_hashes(name: str) -> dict[int, Any]:
        lines = [json.loads(line) for line in (folder / f"{name}.hashes").open()]
        return {line["step"]: line["hash"] for line in lines}

    assert read_hashes("killed") == read_hashes("whole")
