"""What goes wrong in long runs, made to go wrong in the real trainers: signals, bad losses, a full disk, processes that stop, lag or are lost.

To be run by a baked environment's Python (build.py test --inside env:DIR), T5X's or Pax's. Minutes on two cores: every run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import run_folders
from tests.support.pax_scripts import SCRIPTS

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
HERE = [name for name in ("t5x", "paxml") if find_spec(name)]
if not HERE:
    pytest.skip("NOT TESTED: needs a baked environment of t5x or pax", allow_module_level=True)
T5X = HERE[0] == "t5x"
FOREVER = 1_000_000
EVERY = 10
SMALL = "--fdl.NUM_LAYERS=2 --fdl.NUM_HEADS=4 --fdl.MODEL_DIMS=64 --fdl.HIDDEN_DIMS=128 --fdl.DIMS_PER_HEAD=16 --fdl.VOCAB_SIZE=640 --fdl.MAX_SEQ_LEN=32"
EARLY, LOST = 75, 200


@dataclass
class Run:
    """A run of one or two processes in a folder of its own."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self,
        processes: int = 1,
        *,
        steps: int = FOREVER,
        saved: int = 20,
        rate: str = "0.005",
        **variables: object,
    ) -> None:
        """Start it; each process writes into its own file."""
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "XLA", "JAX", "WANDB"))
        }
        env |= {
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder.parent / "compiled"),
            "DATA": f"text:{ROOT / 'README.md'}",
            "ROSETTA_DOCTOR": "0",
        }
        if processes > 1:
            env |= {
                "SLURM_JOB_ID": str(os.getpid()),
                "SLURM_NTASKS": str(processes),
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_JOB_NODELIST": "localhost",
                "SLURM_NNODES": "1",
            }
        env |= self._t5x(steps, saved, rate) if T5X else self._pax(steps, saved, rate)
        script = (
            ROOT / "overlay/t5x/t5x/contrib/gpu/scripts_gpu/multiprocess_pretrain_pile.sh"
            if T5X
            else SCRIPTS / "run_pile_multinode.sh"
        )
        for rank in range(processes):
            own = {
                **env,
                **{name: str(value) for name, value in variables.items()},
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
            }
            with self._out(rank).open("a") as out:
                self.started.append(
                    subprocess.Popen(
                        ["bash", str(script)],
                        env=own,
                        cwd=self.folder,
                        stdout=out,
                        stderr=out,
                        text=True,
                        start_new_session=True,
                    )
                )

    def _t5x(self, steps: int, saved: int, rate: str) -> dict[str, str]:
        gin = self.folder / "run.gin"
        gin.write_text(
            f"STATS_PERIOD = {EVERY}\nSAVE_PERIOD = {saved}\nWARMUP_STEPS = 20\nLEARNING_RATE = {rate}\n"
        )
        import t5x

        tree = str(Path(t5x.__path__[0]).parent)
        return {
            "T5X_DIR": tree,
            "ROSETTA_GIN": str(gin),
            "VOCAB": "byte",
            "ENC_SL": "32",
            "DEC_SL": "16",
            "T5_SIZE": "tiny",
            "PREC": "float32",
            "BSIZE_PER_GPU": "4",
            "MODEL_DIR": str(self.place),
            "TRAIN_STEPS": str(steps),
        }

    def _pax(self, steps: int, saved: int, rate: str) -> dict[str, str]:
        hyper = f"{SMALL} --fdl.LEARNING_RATE={rate} --fdl.LR_COS_WARMUP=20 --fdl.SUMMARY_INTERVAL_STEPS={EVERY} --fdl.CHECKPOINT_EVERY_N_STEPS={saved}"
        return {
            "ROSETTA_FDL": hyper,
            "VOCAB_PATH": "byte",
            "PREC": "float32",
            "PERCORE_BATCH_SIZE": "4",
            "LOG_DIR": str(self.place),
            "MAX_STEPS": str(steps),
        }

    @property
    def place(self) -> Path:
        return self.folder / "run"

    def _out(self, rank: int) -> Path:
        return self.folder / f"out-{rank}"

    def said(self, rank: int = 0) -> str:
        return self._out(rank).read_text()

    def steps(self) -> list[int]:
        """The checkpoints."""
        return run_folders.list_checkpoint_steps(
            str(self.place if T5X else self.place / "checkpoints")
        )

    def progress(self) -> list[dict[str, Any]]:
        path = self.place / "progress.jsonl"
        return (
            [
                json.loads(line)
                for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")
            ]
            if path.exists()
            else []
        )

    def trained(self, reports: int = 2) -> None:
        """Wait for so many reports."""
        end = time.monotonic() + 900
        while len(self.progress()) < reports:
            assert all(each.poll() is None for each in self.started), self.said()[-3000:]
            assert time.monotonic() < end
            time.sleep(0.2)

    def ends(self, *ranks: int) -> list[int]:
        return [self.started[rank].wait(900) for rank in ranks or range(len(self.started))]


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("health"))
    yield made
    for each in made.started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_ends_in_a_checkpoint_from_which_the_next_start_goes_on(
    run: Run, number: signal.Signals
) -> None:
    run.start(saved=10_000)
    run.trained()
    run.started[0].send_signal(number)
    assert run.ends() == [EARLY], run.said()[-3000:]
    assert run.said().count(f"ended by {number.name} before step") == 1
    stopped = run.steps()[-1]
    assert stopped > EVERY
    run.started.clear()
    before = len(run.progress())
    run.start(saved=10_000, steps=stopped + EVERY)
    assert run.ends() == [0], run.said()[-3000:]
    assert run.progress()[before]["step"] > stopped
    assert json.loads((run.place / "goodput.json").read_text())["starts"] == 2


def test_a_signal_to_a_run_that_saves_nothing_says_so(run: Run) -> None:
    if T5X:
        run.start(CHECKPOINT_DISABLE="true")
    else:
        run.start(ADDITIONAL_ARGS="--enable_checkpoint_saving=False")
    run.trained()
    run.started[0].send_signal(signal.SIGTERM)
    assert run.ends() == [EARLY], run.said()[-3000:]
    assert "no checkpoint is written in this run" in run.said()
    assert run.steps() == []


def test_a_signal_to_one_of_two_ends_both_before_the_same_step(run: Run) -> None:
    run.start(2, saved=10_000)
    run.trained()
    run.started[1].send_signal(signal.SIGTERM)
    assert run.ends() == [EARLY, EARLY], run.said()[-3000:]
    told = f"ended by SIGTERM before step {run.steps()[-1]:,}"
    assert told in run.said(0)
    assert told in run.said(1)


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(run: Run) -> None:
    run.start(rate="1e38", saved=EVERY)
    assert run.ends() == [1], run.said()[-3000:]
    (bad,) = run.place.glob("bad_step_*")
    step = int(bad.name.rpartition("_")[2])
    assert all(each <= step for each in run.steps())
    assert len(json.loads((bad / "batch-0000.json").read_text())["hash"]) == 32
    assert json.loads((bad / "loss.json").read_text())["loss"] in ("nan", "inf")
    assert "no checkpoint was written after it" in run.said()


def test_bad_steps_are_skipped_but_not_for_ever(run: Run) -> None:
    run.start(rate="1e38", saved=10_000, ON_BAD_LOSS="skip")
    assert run.ends() == [1], run.said()[-3000:]
    assert run.said().count("its update is left out") == 10


def test_a_full_disk_leaves_the_last_good_checkpoint(run: Run) -> None:
    run.place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(run.place)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("NOT TESTED: no file system can be mounted here; run it as root")
    try:
        with (run.place / "ballast").open("wb") as file:
            file.write(bytes(2**20 * 10))
        run.start(saved=EVERY, steps=20 * EVERY)
        (code,) = run.ends()
        assert code == 2, run.said()[-3000:]
        assert "is not written" in run.said()
        assert "the run keeps the last checkpoint and goes on" in run.said()
        assert run.steps()
        assert not list(run.place.rglob("*.orbax-checkpoint-tmp*"))
    finally:
        subprocess.run(["umount", "-l", str(run.place)], check=True)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_stopped_is_named_and_the_run_ends(run: Run, rank: int) -> None:
    run.start(2, saved=10_000, WATCHDOG_SECONDS=15)
    run.trained()
    run.started[rank].send_signal(signal.SIGSTOP)
    other = 1 - rank
    assert run.ends(other) == [LOST], run.said(other)[-3000:]
    assert f"rank {rank} (" in run.said(other)
    assert "send(s) no heartbeat: stopped, lost or cut off" in run.said(other)
    assert (run.place / "stacks" / f"rank-{other:04d}.txt").stat().st_size


SLOW = """
import os, time
if os.environ.get("SLURM_PROCID") == "1":
    from rosetta.data import pipeline
    quick = pipeline.Batches.make_batch
    pipeline.Batches.make_batch = lambda self, step: (time.sleep(1.0), quick(self, step))[1]
"""


def test_a_process_whose_input_is_slow_is_named(run: Run) -> None:
    (run.folder / "sitecustomize.py").write_text(SLOW)
    run.start(
        2,
        saved=10_000,
        steps=3 * EVERY,
        PYTHONPATH=f"{run.folder}{os.pathsep}{ROOT}",
        ROSETTA_DATA_WORKERS=1,
    )
    assert run.ends() == [0, 0], run.said()[-3000:]
    assert "is slow: its input takes" in run.said()
    last = run.progress()[-1]
    assert last["host_wait_rank"] == 1
    assert last["host_wait_max"] > last["host_wait_median"] + 0.3


def test_a_process_that_is_lost_is_named_and_the_other_ends_by_itself(run: Run) -> None:
    run.start(2, saved=10_000)
    run.trained()
    run.started[1].kill()
    assert run.ends(0) == [LOST], run.said()[-3000:]
    assert "rank 1 (" in run.said()
    assert "is lost" in run.said()


def test_a_trace_and_checkpoints_by_time(run: Run) -> None:
    run.start(saved=10_000, steps=10 * EVERY, PROFILE_STEPS="5:8", CHECKPOINT_MINUTES=".002")
    assert run.ends() == [0], run.said()[-3000:]
    assert list((run.place / "profile").rglob("*.trace.json.gz"))
    assert "operation" in run.said()
    assert [step for step in run.steps() if step not in (0, 10 * EVERY)]
    assert " is complete: " in run.said()
    assert any("save_stall" in line for line in run.progress())
    assert 0 < run.progress()[-1]["goodput"] < 1
