"""Run Pax's scripts, up to Paxml; see t5x_scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rosetta.launch import pax_trainer
from tests.support import t5x_scripts
from tests.support.t5x_scripts import RECORDER, Ran

SCRIPTS = t5x_scripts.ROOT / "overlay" / "paxml" / "paxml" / "contrib" / "gpu" / "scripts_gpu"
H100 = "NVIDIA H100 80GB HBM3, 9.0"
A100 = "NVIDIA A100-SXM4-80GB, 8.0"
OURS = "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false --xla_gpu_all_reduce_combine_threshold_bytes={} --xla_gpu_enable_command_buffer="
# The scripts, words and variables of usual runs.
BASE = "run_base_config_multinode.sh"
PILE = "run_pile_singlenode.sh"
TEXT = {"DATA": "text:corpus.txt"}
BOOLQ = {"DATA": "jsonl:boolq.jsonl", "LOG_DIR": "logs"}
SLURM = {
    "SLURM_NTASKS": "16",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_JOB_ID": "42",
}


@dataclass(frozen=True)
class Place(t5x_scripts.Place):
    """A folder with text and a vocabulary, in which scripts run."""

    def env(self, **settings: str) -> dict[str, str]:
        return super().env(**{"VOCAB_PATH": "byte", "VOCAB": "", "TFDS_DATA_DIR": "", **settings})

    def script(self, name: str) -> Path:
        return SCRIPTS / name

    def run(self, script: str, *words: str, **settings: str) -> Ran:
        argv = [self.script(script).stem, *words]
        return self.call(lambda: pax_trainer.main(argv), **settings)

    def checkpoint(self, run: str, *steps: int) -> Path:
        for step in steps:
            (self.work / run / "checkpoints" / f"checkpoint_{step:08}").mkdir(parents=True)
        return self.work / run


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def make_place(tmp_path: Path) -> Place:
    """Make a folder with text for the scripts."""
    work = tmp_path / "work"
    (work / "bin").mkdir(parents=True)
    (work / "corpus.txt").write_text("A line of text.\n" * 200_000)  # a batch of 128 GPUs
    (work / "boolq.jsonl").write_text('{"question": "is it", "passage": "it is", "answer": true}\n')
    made = Place(tmp_path, work)
    for name in ("recorder", "srun", "nsys"):
        made.program(name, RECORDER)
    return made
