"""LoRA, the best checkpoint and the early stop in the real trainer: finetune, kill, resume, merge.

To be run by a baked environment's Python (build.py test --inside env:DIR). A few minutes on two
cores: each run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

t5x = pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

from rosetta.convert import t5x_checkpoint
from rosetta.core import run_folders
from tests.support.baked_runs import kill_when, read_reports, run, start

pytestmark = [pytest.mark.upstream, pytest.mark.long]

MODEL = ("T5_SIZE=tiny", "PREC=float32", "VOCAB=byte", "ENC_SL=32", "DEC_SL=16")
PAIRS = ("FT_TASK=pairs", "DATA=jsonl:pairs.jsonl")
START = 20
# The loss falls, so that the largest one comes first, and the run stops two evaluations later.
BEST, STOP = START + 10, START + 30
FINETUNING = (
    *("t5x", "finetune", *MODEL, *PAIRS, "EVAL_DATA=jsonl:pairs.jsonl", "BSIZE_PER_GPU=8"),
    *("MODEL_DIR=base", "FT_DIR=tuned", "FT_STEPS=200", "WARMUP_STEPS=2", "LEARNING_RATE=1e-2"),
    *("EVAL_PERIOD=10", "STATS_PERIOD=10", "EARLY_STOP_PATIENCE=2"),
    *("LORA_RANK=4", "LORA_ALPHA=8", "LORA_TARGETS=all"),
)

LARGEST = "KEEP_BEST=loss:max"


def has_evaluated(folder: Path, step: int) -> bool:
    """Return whether a run has evaluated a step."""
    return any("best" in report and report["step"] >= step for report in read_reports(folder))


def read_arrays(checkpoint: Path) -> dict[str, Any]:
    return dict(t5x_checkpoint.Source(checkpoint).arrays)


def test_adapters_are_trained_kept_and_merged(tmp_path: Path) -> None:
    capitals = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Greece": "Athens"}
    records = [{"inputs": name, "targets": city} for name, city in capitals.items()] * 2
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in records))
    (tmp_path / "text.txt").write_text("A line of text to learn from.\n" * 200)
    run(
        tmp_path,
        *("t5x", "pretrain", *MODEL, "DATA=text:text.txt", "BSIZE_PER_GPU=8", "MODEL_DIR=base"),
        *(f"TRAIN_STEPS={START}", "LEARNING_RATE=5e-3"),
    )
    unknown = run(tmp_path, *FINETUNING, "KEEP_BEST=exactness:max", status=2)
    assert "text_to_text/accuracy" in unknown
    tuned = tmp_path / "tuned"
    assert run_folders.list_checkpoint_steps(str(tuned)) == []  # refused before training

    kill_when(start(tmp_path, *FINETUNING, LARGEST), lambda: has_evaluated(tuned, BEST))
    shown = run(tmp_path, *FINETUNING, LARGEST)
    assert f"best: step {BEST}" in shown
    # After the kill, the best step and the evaluations since then were still known.
    assert [report["step"] for report in read_reports(tuned) if "stopped" in report] == [STOP]
    assert run_folders.list_checkpoint_steps(str(tuned)) == [BEST, STOP]

    before = read_arrays(tmp_path / "base" / f"checkpoint_{START}")
    after = read_arrays(tuned / f"checkpoint_{STOP}")
    for name, array in before.items():
        if name.startswith("target/"):
            assert array.read().tobytes() == after[name].read().tobytes(), name
    trained = [name for name in after if name.startswith("target/") and name not in before]
    assert {name.rpartition("/")[2] for name in trained} == {"lora_a", "lora_b"}
    assert all(after[name].read().any() for name in trained)
    moments = [name for name in after if name.startswith("state/param_states/")]
    assert not [name for name in moments if "lora_" not in name and not name.endswith("count")]

    losses = {}
    run(tmp_path, "convert", "t5", f"tuned/checkpoint_{STOP}", "merged", "--to", "t5x")
    assert not [name for name in read_arrays(tmp_path / "merged") if "lora_" in name]
    for name, more in (("tuned", ()), ("merged", ("ROSETTA_GIN=merged/model.gin",))):
        run(
            tmp_path,
            *("t5x", "eval", *MODEL, *PAIRS, "BSIZE=8", f"CHECKPOINT_PATH={name}", *more),
            f"OUTPUT_DIR={name}_scores",
        )
        (file,) = (tmp_path / f"{name}_scores").rglob("*-metrics.jsonl")
        losses[name] = json.loads(file.read_text().splitlines()[-1])["loss"]
    assert losses["tuned"] == pytest.approx(losses["merged"], rel=1e-5)
