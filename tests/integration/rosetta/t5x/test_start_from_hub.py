"""A run starts from weights and a vocabulary of a small Hub, which it asks once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("t5x", "huggingface_hub")

from rosetta.convert import tokenizer_files
from rosetta.data import vocabularies
from tests.support import t5_weights
from tests.support.model_hub import TOKEN, serve_hub

NAME = "hf:me/t5-small"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A T5 1.1 with the vocabulary of byT5, in Hugging Face's files."""
    config = t5_weights.make_config("t5_1_1") | {"vocab_size": 384}
    weights = {name: 0.1 * array for name, array in t5_weights.make_weights(config).items()}
    folder = t5_weights.write_folder(tmp_path / "model", config, weights)
    tokenizer_files.write_tokenizer(vocabularies.Vocabulary("byte", 125), folder)
    return folder


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rosetta", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert TOKEN not in done.stdout + done.stderr
    return done


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    records = [{"inputs": f"a {number}", "targets": f"b {number}"} for number in range(64)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _succeed(environment: dict[str, str], *words: str) -> str:
    """Run a command that has to succeed; return what it prints."""
    done = _run(environment, *words)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_weights_are_fetched_and_converted_before_the_run(
    model: Path, pairs: Path, tmp_path: Path
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    words = [f"DATA=jsonl:{pairs}", f"VOCAB={NAME}", "T5_SIZE=tiny", "FT_TASK=pairs"]
    words += ["ENC_SL=32", "DEC_SL=32", "PREC=float32"]
    training = ["t5x", "finetune", *words, f"INITIAL_CHECKPOINT_PATH={NAME}", "FT_STEPS=2"]
    training += [f"MODEL_DIR={tmp_path}/run", f"FT_DIR={out}", "BSIZE_PER_GPU=4"]
    evaluation = ["t5x", "eval", *words, f"CHECKPOINT_PATH={NAME}", "BSIZE=4"]
    project = ["new", "t5x", "mine", "--family", "byt5", "--size", "small", "--from", NAME]
    environment: dict[str, Any] = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[4]),
        "JAX_PLATFORMS": "cpu",
        "ROSETTA_HOME": str(home),
        "HF_TOKEN": TOKEN,
    }
    with serve_hub() as hub:
        environment["HF_ENDPOINT"] = hub.address
        hub.add_folder("me/t5-small", model)
        hub.private.add("me/t5-small")
        assert _run({**environment, "HF_TOKEN": ""}, *training, "--dry-run").returncode == 2
        assert not list(home.glob("converted/*"))
        shown = _succeed(environment, *training, "--dry-run")
        request_count = len(hub.requests)
        (converted,) = home.glob("converted/*-t5x")
        assert f'INITIAL_CHECKPOINT_PATH="{converted}"' in shown
        assert not out.exists()
        environment["HF_HUB_OFFLINE"] = "1"
        gin_file = f"ROSETTA_GIN={converted}/model.gin"
        _succeed(environment, *training, gin_file)
        (tmp_path / "start.gin").write_text(f"INITIAL_CHECKPOINT_PATH = '{NAME}'\n")
        pretraining = ["t5x", "pretrain", f"DATA=text:{pairs}", "VOCAB=byte", "T5_SIZE=tiny"]
        pretraining += [f"MODEL_DIR={tmp_path}/other", f"ROSETTA_GIN={tmp_path}/start.gin"]
        shown = _succeed(environment, *pretraining, "NUM_GPUS=1", "--dry-run")
        assert f'INITIAL_CHECKPOINT_PATH="{converted}"' in shown
        output = f"OUTPUT_DIR={tmp_path}/eval"
        shown = _succeed(environment, *evaluation, gin_file, output, "--dry-run")
        assert f'CHECKPOINT_PATH="{converted}"' in shown
        _succeed(environment, *project, "--data", f"jsonl:{pairs}", "--out", f"{tmp_path}/new")
        assert len(hub.requests) == request_count
        vocabulary = f"{NAME}@{hub.commit('me/t5-small')}"
    gin = (tmp_path / "new" / "mine_small.gin").read_text()
    assert f"VOCAB = '{vocabulary}'" in gin
    assert f"INITIAL_CHECKPOINT_PATH = '{converted}'" in gin
    assert (out / "checkpoint_2").is_dir()
    assert str(converted) in (out / "checkpoint_2" / "rosetta.json").read_text()
