"""The .sub files train for real on a real Slurm of two nodes, see tests/support/slurm_cluster.py: the trainer of this environment, a tiny model, a process a node.

To be run by a baked environment's Python (build.py test --inside env:DIR), of T5X or of Pax. Some minutes on two cores.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rosetta.core import run_folders
from tests.support import corpora, slurm_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.slurm_cluster import Slurm

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
EVERY, SAVED = 10, 20
STEPS = 120  # the learning rate falls towards the last step: all runs have the same
GIN = f"STATS_PERIOD = {EVERY}\nSAVE_PERIOD = {SAVED}\nWARMUP_STEPS = 20\nLEARNING_RATE = 0.005\nDROPOUT_RATE = 0.0\n"
FDL = {
    "NUM_LAYERS": 2,
    "NUM_HEADS": 4,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 128,
    "DIMS_PER_HEAD": 16,
    "VOCAB_SIZE": 384,
    "MAX_SEQ_LEN": 32,
    "LEARNING_RATE": 1e-3,
    "LR_COS_WARMUP": 20,
    "SUMMARY_INTERVAL_STEPS": EVERY,
    "CHECKPOINT_EVERY_N_STEPS": SAVED,
}


@dataclass(frozen=True)
class Trained:
    """A run's folder, and the file with its batches' hashes."""

    folder: Path
    log: Path

    def losses(self) -> dict[int, float]:
        path = self.folder / "progress.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return {line["step"]: line["loss"] for line in lines if "loss" in line}

    def saved(self) -> list[int]:
        found = run_folders.list_checkpoint_steps(
            str(self.folder)
        ) or run_folders.list_checkpoint_steps(str(self.folder / "checkpoints"))
        return sorted(found)

    def hashes(self) -> dict[int, int]:
        """Step -> the hash of its global batch, however often and by however many processes it was read."""
        parts: dict[int, dict[int, int]] = defaultdict(dict)
        for line in map(json.loads, self.log.read_text().splitlines()):
            assert parts[line["step"]].setdefault(line["shard"], int(line["hash"], 16)) == int(
                line["hash"], 16
            ), f"step {line['step']} was trained on two batches"
        return {step: sum(shards.values()) % 2**128 for step, shards in parts.items()}


@dataclass(frozen=True)
class Trainer:
    """T5X or Pax: how its jobs and the same run in one process are started. A folder for text and runs, and what every run has set."""

    name: str
    work: Path
    variables: dict[str, str]

    def trained(self, name: str) -> Trained:
        inside = self.work / "workspace" / name
        return Trained(inside, self.work / f"{name}.hashes")

    def submit(self, slurm: Slurm, name: str) -> str:
        """Submit two nodes with a process each."""
        if self.name == "t5x":
            script = "example_slurm_pretrain_pile"
            more = {
                "MODEL_DIR": self.trained(name).folder,
                "BSIZE_PER_GPU": 4,
                "TRAIN_STEPS": STEPS,
                "T5X_DIR_HOST": self.variables["T5X_DIR"],
            }
        else:
            script = "example_slurm_pile"
            more = {"LOG_DIR_LOCAL": name, "PERCORE_BATCH_SIZE": 4, "MAX_STEPS": STEPS}
        env = {
            **self.variables,
            **{key: str(value) for key, value in more.items()},
            "ROSETTA_BATCH_LOG": str(self.trained(name).log),
        }
        return slurm.submit(
            "-N2",
            "-J",
            f"{self.name}-{name}",
            ROOT / "scripts" / f"{script}.sub",
            "1",
            cwd=self.work,
            env=env,
        )

    def alone(self, name: str) -> Trained:
        """Train in one process, without Slurm."""
        if self.name == "t5x":
            script, more = (
                "multiprocess_pretrain_pile.sh",
                {"MODEL_DIR": self.trained(name).folder, "BSIZE_PER_GPU": 8, "TRAIN_STEPS": STEPS},
            )
        else:
            script, more = (
                "run_pile_multinode.sh",
                {
                    "LOG_DIR": self.trained(name).folder,
                    "PERCORE_BATCH_SIZE": 8,
                    "MAX_STEPS": STEPS,
                    "NUM_GPUS": 1,
                },
            )
        env = {
            **self.variables,
            **{key: str(value) for key, value in more.items()},
            "ROSETTA_BATCH_LOG": str(self.trained(name).log),
        }
        done = subprocess.run(
            [self.work / "bin" / script],
            cwd=self.work,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return self.trained(name)

    def said(self, number: str) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}"
            for path in [
                *self.work.glob(f"slurm-{number}.out"),
                *self.work.rglob(f"output-{number}-*.txt"),
            ]
        )


@pytest.fixture(scope="module", name="slurm")
def slurm_() -> Iterator[Slurm]:
    made = slurm_cluster.start_cluster()
    yield made
    made.stop()


@pytest.fixture(scope="module", name="trainer", params=["t5x", "paxml"])
def trainer_(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    found = importlib.util.find_spec(request.param)
    if not found or not found.submodule_search_locations:
        pytest.skip(f"NOT TESTED: needs a baked environment of {request.param}")
    work = tmp_path_factory.mktemp(request.param)
    text = corpora.make_sentences(1500)
    (work / "corpus.txt").write_text("\n".join(text))
    (work / "run.gin").write_text(GIN)
    (work / "bin").mkdir()
    for script in ROOT.glob(f"overlay/{request.param}/*/contrib/gpu/scripts_gpu/*.sh"):
        (work / "bin" / script.name).write_text(f'#!/bin/bash\nexec bash {script} "$@"\n')
        (work / "bin" / script.name).chmod(0o755)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "XLA", "JAX"))
    }
    variables |= {
        "PATH": f"{work}/bin:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    variables |= {"TF_CPP_MIN_LOG_LEVEL": "3", "DATA": f"text:{work}/corpus.txt", "PREC": "float32"}
    if request.param == "t5x":
        tree = next(iter(found.submodule_search_locations))
        variables |= {
            "T5_SIZE": "tiny",
            "VOCAB": "byte",
            "ENC_SL": "64",
            "DEC_SL": "32",
            "ROSETTA_GIN": str(work / "run.gin"),
            "T5X_DIR": str(Path(tree).parent),
        }
    else:
        variables |= {
            "VOCAB_PATH": "byte",
            "ROSETTA_FDL": " ".join(f"--fdl.{name}={value}" for name, value in FDL.items()),
        }
    return Trainer(request.param, work, variables)


@pytest.fixture(scope="module", name="alone")
def alone_(trainer: Trainer) -> Trained:
    return trainer.alone("alone")


def test_two_nodes_train_on_the_batches_of_one_process_to_its_losses(
    slurm: Slurm, trainer: Trainer, alone: Trained
) -> None:
    number = trainer.submit(slurm, "two")
    assert slurm.ended(number, 900)["JobState"] == "COMPLETED", trainer.said(number)
    two = trainer.trained("two")
    _same(two, alone)
    assert (
        len({line["shard"] for line in map(json.loads, two.log.read_text().splitlines())}) == 2
    ), "each read its own half"


def _same(run: Trained, alone: Trained, until: int = STEPS) -> None:
    """Check that a run trained on the batches of the run of one process, to its losses.

    Two processes add the same numbers in another order, which changes a loss by about 1e-7. The
    learning rates are low enough for that to stay so: with five times the rate of Pax the
    difference grows to 1e-2 within 100 steps.

    Args:
      run: the run to check.
      alone: the run of one process.
      until: the last step whose losses are compared; later ones are means over other steps.
    """
    ours, theirs = (
        {step: loss for step, loss in each.losses().items() if step <= until}
        for each in (run, alone)
    )
    assert list(ours) == list(theirs) == list(range(EVERY, until + 1, EVERY))
    assert max(run.losses()) == STEPS
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert [run.hashes()[step] for step in range(STEPS)] == [
        alone.hashes()[step] for step in range(STEPS)
    ]
    assert run.saved()[-1] == STEPS


def _reach(slurm: Slurm, trainer: Trainer, number: str, run: Trained, step: int) -> None:
    def there() -> bool:
        assert slurm.state(number) in {"PENDING", "RUNNING"}, trainer.said(number)
        return bool(run.saved()) and max(run.losses(), default=0) >= step

    slurm_cluster.wait_until(there, 600, lambda: trainer.said(number))


def test_a_lost_node_costs_what_came_after_the_last_checkpoint(
    slurm: Slurm, trainer: Trainer, alone: Trained
) -> None:
    number = trainer.submit(slurm, "lost")
    run = trainer.trained("lost")
    _reach(slurm, trainer, number, run, 2 * SAVED)
    slurm.lose("n2")
    slurm_cluster.wait_until(
        lambda: slurm.state(number) == "PENDING", 300, lambda: trainer.said(number)
    )
    reached = max(run.losses())
    assert reached < STEPS, "it was done before it was lost: train for longer"
    slurm.start("n2")
    slurm.hurry(number)
    ended = slurm.ended(number, 900)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), trainer.said(number)
    _same(run, alone)


def test_a_signal_ends_in_a_checkpoint_and_the_next_job_goes_on(
    slurm: Slurm, trainer: Trainer, alone: Trained
) -> None:
    run = trainer.trained("stopped")
    number = trainer.submit(slurm, "stopped")
    _reach(slurm, trainer, number, run, 2 * SAVED)
    slurm.run("scancel", "--signal=USR1", number)
    ended = slurm.ended(number, 300)
    assert (ended["JobState"], ended["Restarts"]) == ("FAILED", "0"), trainer.said(number)
    assert ended["ExitCode"] == "75:0", trainer.said(number)
    stopped = run.saved()[-1]
    assert 2 * SAVED <= stopped < STEPS
    number = trainer.submit(slurm, "stopped")
    assert slurm.ended(number, 900)["JobState"] == "COMPLETED", trainer.said(number)
    _same(run, alone, stopped)
