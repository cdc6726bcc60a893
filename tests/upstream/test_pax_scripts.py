"""Pax's scripts from real text to accuracies, on this machine's CPU: the real Paxml, small models.

To be run by a baked environment's Python (build.py test --inside env:DIR). Some minutes on two cores: every run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosetta.core import run_folders
from rosetta.pax.run import preflight
from tests.support import corpora
from tests.support.pax_scripts import SCRIPTS

paxml = pytest.importorskip("paxml", reason="NOT TESTED: needs a baked environment of pax")

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY, SAVED = 400, 20, 100
SMALL = "--fdl.NUM_LAYERS=2 --fdl.NUM_HEADS=4 --fdl.MODEL_DIMS=64 --fdl.HIDDEN_DIMS=128 --fdl.DIMS_PER_HEAD=16 --fdl.VOCAB_SIZE=640"
GPT = f"{SMALL} --fdl.MAX_SEQ_LEN=32 --fdl.LEARNING_RATE=5e-3 --fdl.LR_COS_WARMUP=20 --fdl.SUMMARY_INTERVAL_STEPS={EVERY} --fdl.CHECKPOINT_EVERY_N_STEPS={SAVED}"
LLAMA = f"{SMALL} --fdl.FPROP_DTYPE=float32 --fdl.SUMMARY_INTERVAL_STEPS=5 --fdl.CHECKPOINT_EVERY_N_STEPS=10"


@dataclass(frozen=True)
class Place:
    """Text, tasks and a vocabulary."""

    folder: Path
    variables: dict[str, str]

    def start(self, script: str, *words: object, **variables: object) -> subprocess.Popen[str]:
        environment = {**self.variables, **{name: str(value) for name, value in variables.items()}}
        argv = ["bash", str(SCRIPTS / script), *map(str, words)]
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
        return self.ends(0, script, *words, **variables)

    def ends(self, rc: int, script: str, *words: object, **variables: object) -> str:
        """Run a script that ends with this status; return what it said."""
        process = self.start(script, *words, **variables)
        said, _ = process.communicate(timeout=1200)
        logs = (
            "".join(
                path.read_text()[-3000:]
                for path in [*self.folder.glob("*/*.log"), *self.folder.glob("*/logs/*.txt")]
            )
            if process.returncode != rc
            else ""
        )
        assert process.returncode == rc, f"{said[-3000:]}{logs}"
        return said

    def pretrain(self, name: str, **variables: object) -> Path:
        words = ["", self.folder / "sp.model", "float32", 1, 8, name]
        self.run(
            "run_pile_singlenode.sh",
            *words,
            **{
                "MAX_STEPS": STEPS,
                "ROSETTA_FDL": GPT,
                "ROSETTA_BATCH_LOG": self.folder / f"{name}.hashes",
                **variables,
            },
        )
        return self.folder / name

    def llama(self, **variables: object) -> str:
        usual = {
            "MAX_STEPS": 20,
            "MAX_SEQ_LEN": 128,
            "PERCORE_BATCH_SIZE": 4,
            "LR_COS_WARMUP": 2,
            "LEARNING_RATE": "1e-3",
            "ROSETTA_FDL": LLAMA,
            "DATA": f"jsonl:{self.folder}/boolq.jsonl",
        }
        return self.run("run_llama_boolq.sh", **{**usual, "EVAL_DATA": usual["DATA"], **variables})


def _progress(folder: Path) -> dict[int, float]:
    text = (folder / "progress.jsonl").read_text()
    lines = [
        json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()
    ]  # the last one may be half written
    return {line["step"]: line["loss"] for line in lines}


def _evaluation(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    return found


def _weights(run: Path, step: int) -> dict[str, np.ndarray[Any, Any]]:
    """A checkpoint's parameters, each of which is an array in a folder of its name."""
    import tensorstore  # type: ignore[import-not-found]

    state = run / "checkpoints" / f"checkpoint_{step:08}" / "state"
    found = {}
    for folder in sorted(state.glob("mdl_vars.params.*")):
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}
        found[folder.name] = np.asarray(tensorstore.open(spec, open=True).result().read().result())
    assert found
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("pax")
    # A vocabulary of 600 pieces needs 3000 words. In 400 steps the small model learns no more of so
    # many words than how frequent each piece is, so the text to train on has 300 of them.
    text = corpora.make_sentences(1500, words=3000)
    (folder / "corpus.txt").write_text("\n".join(corpora.make_sentences(1500)))
    # Each answer is frequent enough to get a piece of its own.
    answers = [f"{sentence} {word} {word}" for sentence in text for word in ("yes", "no")]
    (folder / "words.txt").write_text("\n".join(answers))
    with (
        (folder / "lambada.jsonl").open("w") as lambada,
        (folder / "boolq.jsonl").open("w") as boolq,
    ):
        for number, line in enumerate(text[:30]):
            print(json.dumps({"text": line}), file=lambada)
            print(
                json.dumps(
                    {
                        "passage": line,
                        "question": f"is {line.split()[0]} in it",
                        "label": number % 2,
                    }
                ),
                file=boolq,
            )
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
        "DATA": f"text:{folder}/corpus.txt",
        "VOCAB_PATH": f"{folder}/sp.model",
    }
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta",
        "vocab",
        "train",
        "--data",
        f"text:{folder}/words.txt",
        "--size",
        "600",
        "--out",
        variables["VOCAB_PATH"],
    ]
    subprocess.run(argv, env=variables, check=True, capture_output=True)
    return Place(folder, variables)


@pytest.fixture(scope="module")
def pretrained(place: Place) -> Path:
    return place.pretrain("pretrained")


def test_pretraining_learns_and_says_so(pretrained: Path) -> None:
    losses = _progress(pretrained)
    assert list(losses) == list(range(EVERY, STEPS + 1, EVERY))
    assert losses[STEPS] < 0.8 * losses[EVERY]
    assert preflight.find_newest_step(str(pretrained)) == STEPS
    first = json.loads((pretrained / "progress.jsonl").read_text().splitlines()[0])
    assert set(first) >= {
        "step",
        "total",
        "loss",
        "steps_per_second",
        "tokens_per_second",
        "mfu",
        "input_wait",
        "seconds_left",
        "goodput",
    }
    assert first["tokens_per_second"] == pytest.approx(first["steps_per_second"] * 8 * 32)
    from rosetta.selftest import tensorboard_events

    theirs = tensorboard_events.read_scalars(pretrained / "summaries" / "train", "rosetta/loss")
    assert {step: pytest.approx(loss) for step, loss in theirs.items()} == losses


def test_killed_and_continued_is_the_same_run(place: Place, pretrained: Path) -> None:
    folder = place.folder / "killed"
    words = ["", place.folder / "sp.model", "float32", 1, 8, "killed"]
    process = place.start(
        "run_pile_singlenode.sh",
        *words,
        MAX_STEPS=STEPS,
        ROSETTA_FDL=GPT,
        ROSETTA_BATCH_LOG=place.folder / "killed.hashes",
    )
    end = time.monotonic() + 1000
    while not (
        SAVED in run_folders.list_checkpoint_steps(str(folder / "checkpoints"))
        and (folder / "progress.jsonl").exists()
        and max(_progress(folder), default=0) >= SAVED + EVERY
    ):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert max(_progress(folder)) < STEPS, "it was done before it was killed: train for longer"
    place.pretrain("killed")
    assert _progress(folder) == pytest.approx(_progress(pretrained), rel=1e-6)
    ours, theirs = _weights(folder, STEPS), _weights(pretrained, STEPS)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_lambada(place: Place, pretrained: Path) -> None:
    said = place.run(
        "run_lambada_singlenode.sh",
        "",
        place.folder / "sp.model",
        "float32",
        1,
        8,
        "pretrained",
        DATA=f"jsonl:{place.folder}/lambada.jsonl",
        ROSETTA_FDL=SMALL + " --fdl.MAX_SEQ_LEN=24",
    )
    found = _evaluation(pretrained)
    assert (found["step"], found["data"]) == (STEPS, "LambadaValidation")
    assert 0 <= found["accuracy"] <= 1
    assert f"step {STEPS:,}  LambadaValidation  loss {found['loss']:.4f}  accuracy" in said
    assert preflight.find_newest_step(str(pretrained)) == STEPS


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(
    place: Place, pretrained: Path
) -> None:
    """To go on from, to begin with, and to evaluate: Paxml itself ends the first in a traceback, and fills up the weights of the others with zeros."""
    words = ["", place.folder / "sp.model", "float32", 1, 8]
    kept = _files(pretrained)
    found = "the checkpoint has params.lm.transformer.x_layers_0.ff_layer.ffn_layer1.bias.b in the shape [128], the model needs [256], and 5 more differ (5 in shape); use the hyper-parameters"
    checkpoint = f"{pretrained}/checkpoints/checkpoint_{STEPS:08}"
    other = f"{GPT} --fdl.HIDDEN_DIMS=256"
    for script, name, more, data, where in (
        ("run_pile_singlenode.sh", "pretrained", "", {}, checkpoint),
        (
            "run_pile_singlenode.sh",
            "other",
            f'--fdl.CHECKPOINT_RESTORE_PATH="{pretrained}"',
            {},
            f"CHECKPOINT_RESTORE_PATH={checkpoint}",
        ),
        (
            "run_lambada_singlenode.sh",
            "pretrained",
            "",
            {"DATA": f"jsonl:{place.folder}/lambada.jsonl"},
            checkpoint,
        ),
    ):
        said = place.ends(
            2, script, *words, name, MAX_STEPS=STEPS + 20, ROSETTA_FDL=f"{other} {more}", **data
        )
        assert said.splitlines()[-1].startswith(f"rosetta: {where}: {found}"), script
        assert "Traceback" not in said
    assert _files(pretrained) == kept
    assert list(_files(place.folder / "other")) == []


def _files(folder: Path) -> dict[str, int]:
    """The files of a run, and when each was written; what a script's output went to is none."""
    return {
        str(path): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".log"
    }


@pytest.fixture(scope="module")
def finetuned(place: Place) -> Path:
    place.llama(LOG_DIR="sft")
    return place.folder / "sft" / "llama-LLaMA7B-mbs-4-te-0-lora-0"


def test_all_of_llama_is_finetuned_and_evaluated(finetuned: Path) -> None:
    losses = _progress(finetuned)
    assert losses[20] < losses[5]
    found = _evaluation(finetuned)
    assert (found["step"], found["data"]) == (20, "BoolQ")
    assert found["accuracy"] * 30 == pytest.approx(round(found["accuracy"] * 30), abs=1e-3), (
        "of 30 questions"
    )


def test_lora_leaves_the_weights_alone(place: Place, finetuned: Path) -> None:
    place.llama(
        LOG_DIR="lora", USE_LORA=1, LORA_RANK=4, CHECKPOINT_RESTORE_PATH=finetuned, MAX_STEPS=10
    )
    run = place.folder / "lora" / "llama-LLaMA7B-mbs-4-te-0-lora-1"
    before, after = _weights(finetuned, 20), _weights(run, 10)
    assert set(before) < set(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    added = {name: value for name, value in after.items() if name not in before}
    assert all("lora" in name for name in added)
    assert any(value.any() for name, value in added.items() if "lora_b" in name), (
        "they begin at zero"
    )
    assert _evaluation(run)["step"] == 10


def test_evaluation_alone_gives_what_finetuning_measured(place: Place, finetuned: Path) -> None:
    kept = sorted(str(path) for path in finetuned.rglob("*"))
    place.llama(LOG_DIR="zero", EVAL_ONLY=1, CHECKPOINT_RESTORE_PATH=finetuned)
    found = _evaluation(place.folder / "zero" / "llama-LLaMA7B-mbs-4-te-0-lora-0")
    assert found == _evaluation(finetuned)
    assert sorted(str(path) for path in finetuned.rglob("*")) == kept, "it is only read"


@pytest.mark.parametrize("mesh", ["[1,4,1]", "[1,2,2]"])
def test_four_devices(mesh: str, place: Place, pretrained: Path) -> None:
    name = f"four{mesh[3]}"
    words = ["Pile126M", "float32", 4, name, "", place.folder / "sp.model"]
    more = f"{GPT} --fdl.ICI_MESH_SHAPE={mesh} --fdl.DCN_MESH_SHAPE=[1,1,1] --fdl.PERCORE_BATCH_SIZE=2 --fdl.MAX_STEPS=20"
    place.run("run_base_config_multinode.sh", *words, more)
    assert _progress(place.folder / name)[EVERY] == pytest.approx(
        _progress(pretrained)[EVERY], rel=1e-4
    )


def test_a_mesh_over_two_processes(place: Place, pretrained: Path) -> None:
    slurm: dict[str, Any] = {
        "SLURM_JOB_ID": os.getpid(),
        "SLURM_NTASKS": 2,
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_LOCALID": 0,
    }
    common: dict[str, Any] = {
        "MAX_STEPS": 20,
        "ROSETTA_FDL": GPT,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    words = ["", place.folder / "sp.model", "float32", 2, 2, "two"]
    both = [
        place.start("run_pile_multinode.sh", *words, **slurm, **common, SLURM_PROCID=rank)
        for rank in range(2)
    ]
    with ThreadPoolExecutor() as readers:  # one that nobody reads stops, and the other waits for it
        for process, (said, _) in zip(
            both, readers.map(lambda each: each.communicate(timeout=1200), both), strict=True
        ):
            assert process.returncode == 0, said[-3000:]
    assert _progress(place.folder / "two")[EVERY] == pytest.approx(
        _progress(pretrained)[EVERY], rel=1e-4
    )


def test_synthetic_data_need_neither_text_nor_vocabulary(place: Place) -> None:
    more = f"{SMALL} --fdl.MAX_SEQ_LEN=32 --fdl.ICI_MESH_SHAPE=[1,1,1] --fdl.DCN_MESH_SHAPE=[1,1,1] --fdl.MAX_STEPS=10 --fdl.SUMMARY_INTERVAL_STEPS=5"
    place.run(
        "run_base_config_multinode.sh",
        "Synthetic5B",
        "float32",
        1,
        "synthetic",
        "None",
        "None",
        more,
        DATA="",
        VOCAB_PATH="",
    )
    assert list(_progress(place.folder / "synthetic")) == [5, 10]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (
            "",
            "ICI_MESH_SHAPE=[1,8,1] x DCN_MESH_SHAPE=[1,32,1]: the mesh is for 256 devices, and the run has 1",
        ),
        (
            "--fdl.ICI_MESH_SHAPE=[1,1,1] --fdl.DCN_MESH_SHAPE=[1,1,1] --fdl.NUM_HEADS=3",
            "NUM_HEADS",
        ),
    ],
)
def test_what_only_the_experiment_knows_is_one_line_too(
    place: Place, more: str, complaint: str
) -> None:
    small = f"{SMALL} {more}"  # or room for the checkpoints of 5B would be asked for first
    said = place.ends(
        2, "run_base_config_multinode.sh", "Synthetic5B", "bfloat16", 1, "refused", "", "", small
    )
    last = [line for line in said.splitlines() if line.startswith("rosetta: ")][-1]
    assert complaint in last
    assert "Traceback" not in said
    assert not (place.folder / "refused").exists()
