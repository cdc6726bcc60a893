"""Finetuning on files of GLUE in the real trainer, and the evaluation by the task's metric.

To be run by a baked environment's Python (build.py test --inside env:DIR). Some minutes on two
cores: each run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

t5x = pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.upstream, pytest.mark.long]

TASK = "FT_TASK=task:glue_sst2_v002"
MODEL = ("T5_SIZE=tiny", "PREC=float32", "VOCAB=byte", "ENC_SL=64", "DEC_SL=16")
WORDS = (("dull", "awful", "weak", "tedious"), ("fine", "great", "lovely", "superb"))


def write_sentences(path: Path, count: int, seed: int) -> None:
    """Write sentences whose words say their label, sorted by the label as many files are."""
    draw = random.Random(seed)  # noqa: S311
    labels = sorted(draw.randrange(2) for _ in range(count))
    lines = [
        json.dumps({"sentence": f"a {draw.choice(WORDS[label])} film", "label": label, "idx": idx})
        for idx, label in enumerate(labels)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def run(folder: Path, *words: str) -> str:
    """Run a command of `rosetta t5x` in a folder; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "rosetta", "t5x", *words],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "JAX_PLATFORMS": "cpu",
            "ROSETTA_DOCTOR": "0",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_a_task_of_glue_is_learned_from_files(tmp_path: Path) -> None:
    (tmp_path / "SST-2").mkdir()
    write_sentences(tmp_path / "SST-2" / "train.jsonl", 400, 1)
    write_sentences(tmp_path / "SST-2" / "dev.jsonl", 32, 2)
    (tmp_path / "text.txt").write_text("A line of text to learn from.\n" * 200)
    run(
        tmp_path,
        *("pretrain", *MODEL, "DATA=text:text.txt", "BSIZE_PER_GPU=8", "TRAIN_STEPS=5"),
        "MODEL_DIR=base",
    )
    run(
        tmp_path,
        *("finetune", TASK, *MODEL, "DATA=jsonl:SST-2/train.jsonl", "BSIZE_PER_GPU=16"),
        *("EVAL_DATA=jsonl:SST-2/dev.jsonl", "MODEL_DIR=base", "FT_DIR=tuned", "FT_STEPS=120"),
        *("WARMUP_STEPS=10", "LEARNING_RATE=5e-3", "EVAL_PERIOD=60", "STATS_PERIOD=20"),
    )
    lines = (tmp_path / "tuned" / "progress.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    metrics = [
        report["evaluation"]["glue_sst2"]
        for report in reports
        if "accuracy" in report.get("evaluation", {}).get("glue_sst2", {})
    ]
    assert metrics[-1]["accuracy"] == 100.0
    run(
        tmp_path,
        *("eval", TASK, *MODEL, "DATA=jsonl:SST-2/dev.jsonl", "BSIZE=16"),
        *("CHECKPOINT_PATH=tuned", "OUTPUT_DIR=scores"),
    )
    (file,) = (tmp_path / "scores").rglob("*-metrics.jsonl")
    assert json.loads(file.read_text().splitlines()[-1])["accuracy"] == 100.0
