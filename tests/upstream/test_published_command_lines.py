"""Published command lines of other projects, typed in a shell, with the real trainer on the CPU.

To be run by a baked environment's Python (build.py test --inside env:DIR). Six minutes on two
cores. The command lines of NVIDIA's pages are in tests/unit/rosetta/nvidia_command_lines.toml.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

t5x = pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "overlay/t5x/t5x/contrib/gpu/scripts_gpu"
# A clone of github.com/dumitrescustefan/t5x_models, whose files are not ours to ship.
CLONE = "ROSETTA_TEST_T5X_MODELS"
CONFIG = {
    "d_ff": 64,
    "d_kv": 16,
    "d_model": 32,
    "dropout_rate": 0.1,
    "model_type": "t5",
    "num_heads": 2,
    "num_layers": 1,
    "vocab_size": 384,
}
# The baseline of t5-experiments' README, but for sizes, lengths and steps, and --vocab.
PRETRAIN = """\
export CUDA_VISIBLE_DEVICES=4,5; horovodrun --gloo -np 2 python run_t5_pretraining.py \\
        --batch_size 2 \\
        --gradient_accumulation_steps 2 \\
        --save_interval 10 \\
        --log_interval 5 \\
        --iters {steps} \\
        --data_path ~/data/ThePile/Wikipedia/preprocessed_shards \\
        --model_path ./runs/small_wiki_bs_128 \\
        --input_seq_len 64 \\
        --target_seq_len 32 \\
        --lr 1e-02 \\
        --weight_decay 1e-05 \\
        --model_cfg ./models_configs/t5_configs/t5-small.json \\
        --model_cls modeling_t5:T5ForConditionalGeneration --vocab byte"""
FINETUNE = """\
run_t5_finetuning.py --init_checkpoint runs/small_wiki_bs_128/checkpoint_25 \\
        --data_path pairs.jsonl --valid_data_path pairs.jsonl --model_path runs/finetuned \\
        --vocab byte --batch_size 4 --iters 5 --optimizer Adafactor --lr 1e-03 --scale_parameter \\
        --lr_scheduler constant_with_warmup --num_warmup_steps 2 --input_seq_len 32 \\
        --target_seq_len 16 --log_interval 5 --save_interval 5"""
# In place of the vocabulary in T5's bucket and of WMT: a small network on random ids.
STAND_INS = """\
 --gin.VOCAB=\\"ids:32100\\" --gin.DATA=\\"synthetic\\" --gin.train.infer_eval_dataset_cfg=None \
 --gin.PACK=False --gin.TRAIN_STEPS=4 --gin.BATCH_SIZE=4 \
 --gin.TASK_FEATURE_LENGTHS="{'inputs': 32, 'targets': 32}" --gin.network.T5Config.emb_dim=32 \
 --gin.network.T5Config.num_heads=2 --gin.network.T5Config.head_dim=16 \
 --gin.network.T5Config.mlp_dim=64 --gin.network.T5Config.num_decoder_layers=1"""
TRAIN = (
    'python t5x/train.py --gin_file="t5x/examples/decoder_only/examples/{name}.gin" '
    '--gin.MODEL_DIR=\\"${{MODEL_DIR}}\\" --tfds_data_dir=${{TFDS_DATA_DIR}}'
)


@dataclass(frozen=True)
class Place:
    """A home with the programs of an environment on PATH, and a tree of T5X."""

    home: Path
    tree: Path

    def make_environment(self, **variables: str) -> dict[str, str]:
        return {
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": "cpu",
            "ROSETTA_DOCTOR": "0",
            "T5X_DIR": str(self.tree),
            **variables,
        }

    def type_line(
        self, line: str, variables: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            cwd=cwd or self.home,
            env=self.make_environment(**(variables or {})),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Place:
    tree = Path(next(iter(t5x.__path__))).parent
    (tmp_path / "bin").mkdir()
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    programs = {"python": python, "python3": python}
    for path in (SCRIPTS / "horovodrun", *SCRIPTS.glob("run_*.py")):
        programs[path.name] = f'#!/bin/sh\nexec {sys.executable} {path} "$@"\n'
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    shards = tmp_path / "data/ThePile/Wikipedia/preprocessed_shards"
    shards.mkdir(parents=True)
    text = "".join(json.dumps({"text": f"Sentence number {i}."}) + "\n" for i in range(400))
    (shards / "0.jsonl").write_text(text)
    (tmp_path / "pairs.jsonl").write_text('{"inputs": "one", "targets": "two"}\n' * 40)
    configs = tmp_path / "models_configs/t5_configs"
    configs.mkdir(parents=True)
    (configs / "t5-small.json").write_text(json.dumps(CONFIG))
    return Place(tmp_path, tree)


def read_losses(folder: Path) -> dict[int, float]:
    """Return step -> loss of the training."""
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "tokens_per_second" in line}


def list_steps(folder: Path) -> list[int]:
    """Return the steps of the reports of training, in their order, repeated ones included."""
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "tokens_per_second" in line]


def test_t5_experiments(place: Place) -> None:
    """Pretrain, continue by the name of PyTorch's checkpoint, and finetune what came out."""
    folder = place.home / "runs/small_wiki_bs_128"
    done = place.type_line(PRETRAIN.format(steps=20))
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(path.name for path in folder.glob("checkpoint_*")) == [
        "checkpoint_0",
        "checkpoint_10",
        "checkpoint_20",
    ]
    losses = read_losses(folder)
    assert losses[20] < losses[5]
    again = f"{PRETRAIN.format(steps=25)} --init_checkpoint ./runs/small_wiki_bs_128/model_20.pth"
    done = place.type_line(again)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list_steps(folder) == [5, 10, 15, 20, 25], "no step is trained twice"
    done = place.type_line(FINETUNE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (place.home / "runs/finetuned/checkpoint_30").is_dir()
    assert max(read_losses(place.home / "runs/finetuned")) == 30


def test_weights_of_hugging_face(place: Place) -> None:
    """Finetune a folder of save_pretrained, and pretrain further from one."""
    from tests.support import t5_weights

    config = {**t5_weights.make_config("t5_1_0"), "vocab_size": 384}
    t5_weights.write_folder(place.home / "hf_t5", config, t5_weights.make_weights(config))
    start = "--init_checkpoint runs/small_wiki_bs_128/checkpoint_25"
    done = place.type_line(FINETUNE.replace(start, "--from_pretrained hf_t5"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert max(read_losses(place.home / "runs/finetuned")) == 5
    (place.home / "models_configs/t5_configs/t5-small.json").write_text(json.dumps(config))
    line = f"{PRETRAIN.format(steps=5)} --init_checkpoint hf_t5"
    refused = place.type_line(line)
    assert refused.returncode == 2
    assert "--reset_optimizer" in refused.stderr
    done = place.type_line(f"{line} --reset_optimizer")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "restoring" in done.stderr


@pytest.mark.parametrize("name", ["tiny_gpu_single", "base_wmt_from_scratch"])
def test_upstream_trainer_by_its_path(place: Place, name: str) -> None:
    """`python t5x/train.py` in the folder that has t5x, as the working folder of an image has."""
    (place.home / "t5x").symlink_to(place.tree / "t5x")
    example = f"t5x/examples/decoder_only/examples/{name}.gin"
    if (place.tree / example).read_bytes() != (ROOT / "overlay/t5x" / example).read_bytes():
        pytest.skip("NOT TESTED: the environment has another overlay")
    variables = {"MODEL_DIR": str(place.home / "model"), "TFDS_DATA_DIR": str(place.home)}
    done = place.type_line(TRAIN.format(name=name) + STAND_INS, variables)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (place.home / "model/checkpoint_4").is_dir()


def test_the_four_files_of_a_romanian_model(place: Place) -> None:
    """As published, with paths of this machine, and `token` in place of `use_auth_token`."""
    if not os.environ.get(CLONE):
        pytest.skip(f"NOT TESTED: {CLONE} names no clone of github.com/dumitrescustefan/t5x_models")
    project = place.home / "models/t5x_models"
    project.mkdir(parents=True)
    (place.home / "t5x").symlink_to(place.tree)
    for kind in (".gin", "_tasks.py", "_pretrain.gin", ".sh"):
        name = f"ro_t5x_base{kind}"
        text = subprocess.run(
            ["git", f"--git-dir={os.environ[CLONE]}", "show", f"HEAD:{name}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (project / name).write_text(text)
    corpus = place.home / "rlm"
    corpus.mkdir()
    for split in ("train", "validation"):
        lines = [json.dumps({"text": f"Propoziția numărul {i}. " * 20}) for i in range(400)]
        (corpus / f"{split}.jsonl").write_text("\n".join(lines))
    vocabulary = place.home / "ro.model"
    make_vocabulary(vocabulary, corpus)
    edit(project / "ro_t5x_base.gin", "gs://myv4-bucket/sentencepiece/ro.model", str(vocabulary))
    sizes = (
        "vocab_size = 64000\n  emb_dim = 32\n  num_heads = 2\n  head_dim = 16\n  mlp_dim = 64\n"
        "  num_encoder_layers = 1\n  num_decoder_layers = 1"
    )
    edit(project / "ro_t5x_base.gin", "vocab_size = 64000", sizes)
    edit(project / "ro_t5x_base.gin", "2_000_000", "4")
    edit(
        project / "ro_t5x_base.gin",
        '{"inputs": 512, "targets": 256}',
        '{"inputs": 64, "targets": 32}',
    )
    edit(project / "ro_t5x_base.gin", "num_partitions = 2", "num_partitions = 1")
    edit(project / "ro_t5x_base_pretrain.gin", "BATCH_SIZE = 128", "BATCH_SIZE = 4")
    tasks = project / "ro_t5x_base_tasks.py"
    edit(tasks, "gs://myv4-bucket/sentencepiece/ro.model", str(vocabulary))
    edit(tasks, "dumitrescustefan/rlm", str(corpus))
    model = place.home / "model"
    edit(project / "ro_t5x_base.sh", "gs://myv4-bucket/ro_t5x_base", str(model))
    done = place.type_line("bash ro_t5x_base.sh", cwd=project)
    assert done.returncode != 0
    assert "use_auth_token" in done.stderr, "today's datasets takes `token`"
    shutil.rmtree(model, ignore_errors=True)
    edit(tasks, '"use_auth_token": True', '"token": True')
    done = place.type_line("bash ro_t5x_base.sh", cwd=project)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (model / "checkpoint_4").is_dir()


def test_the_token_of_the_hub(place: Place) -> None:
    """`HfFolder` is gone from today's huggingface_hub; HF_TOKEN is what counts."""
    line = "python -c \"from huggingface_hub.hf_api import HfFolder; HfFolder.save_token('hf_x')\""
    done = place.type_line(line)
    assert done.returncode == 1
    assert "HfFolder" in done.stderr.splitlines()[-1]
    line = 'python -c "from huggingface_hub import get_token; print(get_token())"'
    variables = {"HF_TOKEN": "hf_x"}
    assert place.type_line(line, variables).stdout == "hf_x\n"


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that a file has."""
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new))


def make_vocabulary(path: Path, corpus: Path) -> None:
    """Train a vocabulary as the command line does."""
    argv = [sys.executable, "-P", "-m", "rosetta", "vocab", "train"]
    words = ["--data", f"jsonl:{corpus}/train.jsonl", "--out", str(path), "--size", "400"]
    subprocess.run([*argv, *words], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
