"""T5X's scripts from real text to predictions, on this machine's CPU: the real trainer, evaluation and inference code, a tiny model.

To be run by a baked environment's Python (build.py test --inside env:DIR). Six minutes on two cores: every run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_folders
from tests.support import corpora

t5x = pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY, BATCH = 160, 10, 8
RUN = f"""
TASK_FEATURE_LENGTHS = {{'inputs': 64, 'targets': 32}}
SAVE_PERIOD = 20
STATS_PERIOD = {EVERY}
WARMUP_STEPS = 20
LEARNING_RATE = 0.005
DROPOUT_RATE = 0.1
"""
FINETUNING = RUN + "EVAL_PERIOD = 20\nEVAL_STEPS = 1\nEVAL_BATCH_SIZE = 8\n"


@dataclass(frozen=True)
class Place:
    """A patched tree, a vocabulary, text and tasks."""

    folder: Path
    scripts: Path
    variables: dict[str, str]

    def start(self, script: str, *words: object, **variables: object) -> subprocess.Popen[str]:
        environment = {**self.variables, **{name: str(value) for name, value in variables.items()}}
        argv = ["bash", str(self.scripts / script), *map(str, words)]
        return subprocess.Popen(
            argv,
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *words: object, **variables: object) -> str:
        process = self.start(script, *words, **variables)
        said, _ = process.communicate(timeout=600)
        logs = (
            "".join(path.read_text()[-3000:] for path in (self.folder / "logs").glob("*.log"))
            if process.returncode
            else ""
        )
        assert process.returncode == 0, f"{said[-3000:]}{logs}"
        return said

    def rosetta(self, *words: object) -> str:
        argv = [sys.executable, "-P", "-m", "rosetta", *map(str, words)]
        done = subprocess.run(
            argv,
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def pretrain(self, name: str, **variables: object) -> Path:
        """Pretrain by the script of one process; return the folder of its checkpoints."""
        words = ["tiny", "float32", 1, BATCH, "logs", name]
        self.run(
            "singlenode_pretrain_pile.sh",
            *words,
            TRAIN_STEPS=STEPS,
            ROSETTA_BATCH_LOG=self.folder / f"{name}.hashes",
            **variables,
        )
        return self.folder / name


def _progress(folder: Path) -> dict[int, float]:
    text = (folder / "progress.jsonl").read_text()
    lines = [
        json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()
    ]  # the last one may be half written
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def _hashes(log: Path) -> dict[int, set[int]]:
    """Step -> the hashes of its global batch: one, however often and by however many processes it was read."""
    parts: dict[int, dict[int, int]] = defaultdict(dict)
    for line in map(json.loads, log.read_text().splitlines()):
        parts[line["step"]].setdefault(line["shard"], int(line["hash"], 16))
        assert parts[line["step"]][line["shard"]] == int(line["hash"], 16), (
            f"step {line['step']} was trained on two batches"
        )
    return {step: {sum(shards.values()) % 2**128} for step, shards in parts.items()}


def _first(steps: int, hashes: dict[int, set[int]]) -> dict[int, set[int]]:
    return {step: hashes[step] for step in range(steps)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("t5x")
    shutil.copytree(
        Path(t5x.__path__[0]),
        folder / "tree" / "t5x",
        ignore=shutil.ignore_patterns("__pycache__", "testdata"),
    )
    shutil.copytree(ROOT / "overlay" / "t5x" / "t5x", folder / "tree" / "t5x", dirs_exist_ok=True)
    text = corpora.make_sentences(1500, words=3000)
    (folder / "corpus.txt").write_text("\n".join(text))
    with (folder / "mnli.jsonl").open("w") as mnli, (folder / "squad.jsonl").open("w") as squad:
        for number, line in enumerate(text[:24]):
            words = line.split()
            print(
                json.dumps(
                    {"premise": line, "hypothesis": " ".join(words[:4]), "label": number % 3}
                ),
                file=mnli,
            )
            answer = {"text": [words[1]], "answer_start": [line.index(words[1])]}
            print(
                json.dumps(
                    {
                        "id": str(number),
                        "question": f"What comes after {words[0]}?",
                        "context": line,
                        "answers": answer,
                    }
                ),
                file=squad,
            )
    (folder / "run.gin").write_text(RUN)
    (folder / "finetune.gin").write_text(FINETUNING)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "XLA", "JAX"))
    }
    variables |= {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "ROSETTA_GIN": str(folder / "run.gin"),
        "DATA": f"text:{folder}/corpus.txt",
        "VOCAB": str(folder / "sp.model"),
    }
    made = Place(folder, folder / "tree/t5x/contrib/gpu/scripts_gpu", variables)
    made.rosetta(
        "vocab", "train", "--data", variables["DATA"], "--size", 700, "--out", variables["VOCAB"]
    )
    return made


@pytest.fixture(scope="module")
def pretrained(place: Place) -> Path:
    return place.pretrain("pretrained")


@pytest.fixture(scope="module")
def finetuned(place: Place, pretrained: Path) -> dict[str, Path]:
    found = {}
    for task, name in (("mnli2", "mnli"), ("squad1", "squad")):
        data = f"jsonl:{place.folder}/{name}.jsonl"
        place.run(
            "singlenode_ft_frompile.sh",
            task,
            "tiny",
            "float32",
            1,
            BATCH,
            "logs",
            pretrained.name,
            DATA=data,
            EVAL_DATA=data,
            FT_STEPS=20,
            ROSETTA_GIN=place.folder / "finetune.gin",
            FT_DIR=place.folder / f"ft_{name}",
        )
        found[task] = place.folder / f"ft_{name}"
    return found


def _steps(folder: Path) -> list[int]:
    return run_folders.list_checkpoint_steps(str(folder))  # whole ones


def test_pretraining_learns_and_says_so(pretrained: Path) -> None:
    losses = _progress(pretrained)
    assert list(losses) == list(range(EVERY, STEPS + 1, EVERY))
    assert losses[STEPS] < 0.8 * losses[EVERY]
    assert _steps(pretrained)[-1] == STEPS
    assert list((pretrained / "train").glob("events.out.tfevents.*"))


def test_killed_and_continued_is_the_same_run(place: Place, pretrained: Path) -> None:
    folder, log = place.folder / "killed", place.folder / "killed.hashes"
    words = ["tiny", "float32", 1, BATCH, "logs", "killed"]
    process = place.start(
        "singlenode_pretrain_pile.sh", *words, TRAIN_STEPS=STEPS, ROSETTA_BATCH_LOG=log
    )
    end = time.monotonic() + 300
    while not (
        20 in _steps(folder)
        and (folder / "progress.jsonl").exists()
        and max(_progress(folder), default=0) >= 40
    ):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    reached = max(_progress(folder))
    assert reached < STEPS, "it was done before it was killed: train for longer"
    place.pretrain("killed")
    assert _progress(folder) == pytest.approx(_progress(pretrained), rel=1e-5)
    assert _hashes(log) == _first(STEPS, _hashes(place.folder / "pretrained.hashes"))
    assert len(log.read_text().splitlines()) > STEPS  # some steps were trained twice


@pytest.mark.parametrize(("task", "metrics"), [("mnli2", {"accuracy"}), ("squad1", {"em", "f1"})])
def test_finetuning_reads_one_folder_and_writes_another(
    task: str, metrics: set[str], pretrained: Path, finetuned: dict[str, Path]
) -> None:
    assert _steps(finetuned[task])[-1] == STEPS + 20
    assert _steps(pretrained)[-1] == STEPS
    (measured,) = (finetuned[task] / "inference_eval").glob("*-metrics.jsonl")
    assert metrics < set(json.loads(measured.read_text().splitlines()[-1]))


@pytest.mark.parametrize(("task", "name"), [("mnli2", "mnli"), ("squad1", "squad")])
def test_evaluation_gives_what_finetuning_measured(
    task: str, name: str, place: Place, finetuned: dict[str, Path]
) -> None:
    out = place.folder / f"eval_{name}"
    _read(place, "eval", task, finetuned[task], out, name)
    (there,) = (out / "inference_eval").glob("*-metrics.jsonl")
    (before,) = (finetuned[task] / "inference_eval").glob("*-metrics.jsonl")
    metrics = json.loads(there.read_text().splitlines()[-1])
    assert metrics.pop("loss") > 0
    assert metrics == json.loads(before.read_text().splitlines()[-1])


def test_inference_answers_every_question(place: Place, finetuned: dict[str, Path]) -> None:
    out = place.folder / "infer"
    _read(place, "infer", "squad1", finetuned["squad1"], out, "squad", "NUM_DECODES=2")
    (answers,) = out.glob("*-predict.jsonl-00000-of-00001")
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == 24
    assert all(isinstance(line["prediction"], str) for line in lines)


def _read(
    place: Place, what: str, task: str, checkpoint: Path, out: Path, name: str, *more: str
) -> None:
    data = f"DATA=jsonl:{place.folder}/{name}.jsonl"
    place.rosetta(
        "t5x",
        what,
        f"CHECKPOINT_PATH={checkpoint}",
        f"OUTPUT_DIR={out}",
        f"FT_TASK={task}",
        "T5_SIZE=tiny",
        "PREC=float32",
        "BSIZE=8",
        data,
        *more,
    )


def test_four_devices_with_tensor_parallelism_microbatches_and_sharded_state(
    place: Place, pretrained: Path
) -> None:
    place.run(
        "multiprocess_pretrain_pile.sh",
        T5_SIZE="tiny",
        PREC="float32",
        NUM_GPUS=4,
        BSIZE_PER_GPU=4,
        TP_SIZE=2,
        NUM_MICROBATCHES=2,
        FSDP=1,
        MODEL_DIR=place.folder / "four",
        TRAIN_STEPS=20,
        ROSETTA_BATCH_LOG=place.folder / "four.hashes",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert _hashes(place.folder / "four.hashes") == _first(
        20, _hashes(place.folder / "pretrained.hashes")
    )
    # Dropout draws from other keys for each microbatch: the same data, not the same noise.
    assert _progress(place.folder / "four")[EVERY] == pytest.approx(
        _progress(pretrained)[EVERY], rel=0.05
    )


def test_two_processes_train_on_the_batches_of_one(place: Place, pretrained: Path) -> None:
    slurm: dict[str, Any] = {
        "SLURM_JOB_ID": os.getpid(),
        "SLURM_NTASKS": 2,
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": 1,
    }
    common: dict[str, Any] = {
        "T5_SIZE": "tiny",
        "PREC": "float32",
        "BSIZE_PER_GPU": 4,
        "MODEL_DIR": place.folder / "two",
        "TRAIN_STEPS": 20,
        "ROSETTA_BATCH_LOG": place.folder / "two.hashes",
    }
    both = [
        place.start(
            "multiprocess_pretrain_pile.sh",
            **slurm,
            **common,
            SLURM_PROCID=rank,
            SLURM_LOCALID=rank,
        )
        for rank in range(2)
    ]
    for process in both:
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said[-3000:]
    assert _hashes(place.folder / "two.hashes") == _first(
        20, _hashes(place.folder / "pretrained.hashes")
    )
    assert _progress(place.folder / "two")[EVERY] == pytest.approx(
        _progress(pretrained)[EVERY], rel=1e-3
    )
