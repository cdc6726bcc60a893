"""Files that `rosetta submit --write` has written train on a real Slurm of two nodes.

To be run by a baked environment's Python (build.py test --inside env:DIR), of T5X. The Slurm is that
of tests/support/slurm_cluster.py. Some minutes on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

t5x = pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

from rosetta.core import run_folders
from tests.support import corpora, slurm_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.slurm_cluster import Slurm

pytestmark = [pytest.mark.upstream, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 10
NODES = ("--on", "slurm", "--nodes", "2", "--gpus-per-node", "1")
GIN = f"""\
include 'rosetta/t5x/gin/t5_1_1/tiny.gin'
include 'rosetta/t5x/gin/runs/pretrain.gin'
TASK_FEATURE_LENGTHS = {{'inputs': 64, 'targets': 32}}
VOCAB = 'byte'
DTYPE = 'float32'
BATCH_SIZE = 8
STATS_PERIOD = {STEPS}
SAVE_PERIOD = {STEPS}
"""
# What is submitted, after `rosetta submit`.
JOBS = {
    "preset": (
        *("t5x-tiny", "PREC=float32", "VOCAB=byte", "ENC_SL=64", "DEC_SL=32", "BSIZE_PER_GPU=4"),
        *(f"STATS_PERIOD={STEPS}", f"SAVE_PERIOD={STEPS}"),
    ),
    "gin": ("--gin", "own.gin"),
}


@pytest.fixture(scope="module", name="slurm")
def slurm_() -> Iterator[Slurm]:
    cluster = slurm_cluster.start_cluster()
    yield cluster
    cluster.stop()


def make_environment() -> dict[str, str]:
    """Return the variables of a login node that has this environment and this checkout."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "XLA", "JAX"))
    }
    return {
        **variables,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "ROSETTA_DOCTOR": "0",
    }


@pytest.mark.parametrize("name", JOBS)
def test_a_written_file_trains_on_two_nodes(name: str, slurm: Slurm, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "rosetta"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rosetta "$@"\n')
    program.chmod(0o755)
    variables = make_environment()
    variables["PATH"] = f"{program.parent}:{variables['PATH']}"
    variables["ROSETTA_BATCH_LOG"] = str(tmp_path / "hashes")
    (tmp_path / "text.txt").write_text("\n".join(corpora.make_sentences(500)))
    (tmp_path / "own.gin").write_text(GIN)
    words = [*JOBS[name], "DATA=text:text.txt", "MODEL_DIR=run", f"TRAIN_STEPS={STEPS}", *NODES]
    subprocess.run(
        [program, "submit", *words, "--write", "job.sub"], cwd=tmp_path, env=variables, check=True
    )
    number = slurm.submit("job.sub", cwd=tmp_path, env=variables)
    ended = slurm.ended(number, 1200)
    output = "\n".join(path.read_text(errors="replace") for path in tmp_path.glob("slurm-*.out"))
    assert (ended["JobState"], ended["NumNodes"]) == ("COMPLETED", "2"), output[-4000:]
    assert max(run_folders.list_checkpoint_steps(str(tmp_path / "run"))) == STEPS
    reports = map(json.loads, (tmp_path / "run" / "progress.jsonl").read_text().splitlines())
    assert max(report["step"] for report in reports if "loss" in report) == STEPS
    batches = [json.loads(line) for line in (tmp_path / "hashes").read_text().splitlines()]
    assert {batch["shard"] for batch in batches} == {0, 1}  # each node read its own half
