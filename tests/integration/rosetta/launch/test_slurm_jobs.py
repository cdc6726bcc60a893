"""The .sub files in a real Slurm of two nodes, see tests/support/slurm_cluster.py, with a stand-in for the script that they start on each node."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core.variables import lookup
from tests.support import slurm_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.slurm_cluster import Slurm

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[4]
T5X = {
    "example_slurm_pretrain_pile": "multiprocess_pretrain_pile.sh",
    "example_slurm_ft_frompile": "multiprocess_ft_frompile.sh",
}
PAX = {
    "example_slurm_pile": "run_pile_multinode.sh",
    "example_slurm_llama": "run_llama_boolq.sh",
    "launch_base_script": "run_base_config_multinode.sh",
    "launch_base_config": "run_base_config_multinode.sh",
}
JOBS = {**T5X, **PAX}
# Counts to STEPS, a file a process; continues where it was; signals end it with the status of a run that wrote a checkpoint.
TRAINER = """\
import json, os, signal, sys, time
from pathlib import Path
place = Path(os.environ["RECORD"])
rank, start = os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0")
if os.environ.get("SIGNALS", "1") == "1":
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(75))
(place / f"{start}-{rank}.json").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
count = place / f"count-{rank}"
step = int(count.read_text()) if count.exists() else 0
while step < int(os.environ.get("STEPS", "1")):
    step += 1
    count.with_suffix(".new").write_text(str(step))
    count.with_suffix(".new").rename(count)
    time.sleep(0.05)
print("done", flush=True)
sys.exit(int(os.environ.get("STATUS", "0")) if start == "0" else 0)
"""


@pytest.fixture(scope="module", name="slurm")
def slurm_() -> Iterator[Slurm]:
    made = slurm_cluster.start_cluster()
    yield made
    made.stop()


@dataclass(frozen=True)
class Job:
    """A job that was submitted: its number, its folder, and what its processes left there."""

    slurm: Slurm
    number: str
    work: Path

    def started(self, start: int = 0) -> dict[int, dict[str, Any]]:
        """Return what each process saw, by rank."""
        found = {
            path: path.stem.split("-")[1] for path in (self.work / "record").glob(f"{start}-*.json")
        }
        return {
            int(rank): json.loads(path.read_text())
            for path, rank in found.items()
            if path.stat().st_size
        }

    def counts(self) -> list[int]:
        return [int(path.read_text()) for path in sorted((self.work / "record").glob("count-?"))]

    def reach(self, step: int, processes: int = 2) -> None:
        """Wait until all processes have done so many steps."""
        slurm_cluster.wait_until(
            lambda: len(self.counts()) == processes and min(self.counts()) >= step,
            60,
            lambda: f"{self.counts()} {self.said()}",
        )

    def said(self) -> str:
        path = self.work / f"slurm-{self.number}.out"
        return path.read_text() if path.exists() else ""

    def signal(self, *words: str) -> None:
        assert self.slurm.run("scancel", *words, self.number).returncode == 0


def submit(
    slurm: Slurm, work: Path, name: str, *words: str, options: str = "-N2", **settings: str
) -> Job:
    """Submit scripts/NAME.sub from a folder in which the stand-in is on PATH."""
    (work / "bin").mkdir(exist_ok=True)
    (work / "record").mkdir(exist_ok=True)
    (work / "trainer.py").write_text(TRAINER)
    door = work / "bin" / JOBS[name]
    door.write_text(f'#!/bin/bash\nexec {sys.executable} {work}/trainer.py "$@"\n')
    door.chmod(0o755)
    env = {
        "PATH": f"{work}/bin:{os.environ['PATH']}",
        "HOME": str(work),
        "RECORD": str(work / "record"),
        "DATA": "synthetic",
        "CONFIG": "Synthetic5B",
        "GPUS_PER_NODE": "1",
    }
    number = slurm.submit(
        "-J",
        f"job-{work.name}-{len(list(work.iterdir()))}",
        *options.split(),
        ROOT / "scripts" / f"{name}.sub",
        *words,
        cwd=work,
        env={**env, **settings},
    )
    return Job(slurm, number, work)


@pytest.mark.parametrize("name", JOBS)
def test_each_runs_its_processes_on_two_nodes(slurm: Slurm, tmp_path: Path, name: str) -> None:
    job = submit(slurm, tmp_path, name, "2", BASE_TFDS_DATA_DIR="/d", MINE="a b $(c) 'd'")
    assert slurm.ended(job.number)["JobState"] == "COMPLETED", job.said()
    seen = {rank: process["env"] for rank, process in job.started().items()}
    assert [(seen[rank]["SLURMD_NODENAME"], seen[rank]["SLURM_LOCALID"]) for rank in range(4)] == [
        ("n1", "0"),
        ("n1", "1"),
        ("n2", "0"),
        ("n2", "1"),
    ]
    for env in seen.values():
        assert env["NUM_GPUS"] == ("4" if name in T5X else "2")
        assert env["T5X_WORKSPACE_DIR" if name in T5X else "LOG_DIR"].startswith(
            f"{tmp_path}/workspace"
        )
        assert env["TFDS_DATA_DIR"] == "/d"
        assert env["MINE"] == "a b $(c) 'd'"
    outputs = tmp_path / "workspace" / "outputs" / (f"job-{job.number}" if name in T5X else "")
    assert {path.name: path.read_text() for path in outputs.glob("*.txt")} == {
        f"output-{job.number}-{rank}.txt": "done\n" for rank in range(4)
    }
    assert f"2 node(s) x 2 GPUs, start 0; output in {outputs}".rstrip("/") in job.said()


def test_half_of_a_nodes_gpus(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "example_slurm_pile", options="-N1", GPUS_PER_NODE="4")
    assert slurm.ended(job.number)["JobState"] == "COMPLETED", job.said()
    assert len(job.started()) == 4


@pytest.mark.parametrize("name", JOBS)
def test_sbatch_takes_each_as_it_is(slurm: Slurm, tmp_path: Path, name: str) -> None:
    script = ROOT / "scripts" / f"{name}.sub"
    done = slurm.run(
        "sbatch", "--test-only", "-N2", "-A", "mine", "-J", "x", "-t", "10", script, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr
    assert slurm.run("sbatch", "--test-only", "-N3", script, cwd=tmp_path).returncode != 0, (
        "there are only two nodes"
    )


def test_a_status_of_its_own_is_the_jobs(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "launch_base_script", STATUS="9")
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "9:0", "0")


def test_after_a_process_was_lost_it_is_started_again(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "example_slurm_pile", STATUS="200")
    slurm_cluster.wait_until(lambda: "requeued" in job.said(), 60, job.said)
    slurm.hurry(job.number)
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.said()


@pytest.mark.parametrize(
    "words", [("--signal=USR1",), ("--signal=TERM",), ("--batch", "--signal=TERM")]
)
def test_a_signal_ends_in_a_checkpoint(
    slurm: Slurm, tmp_path: Path, words: tuple[str, ...]
) -> None:
    job = submit(slurm, tmp_path, "example_slurm_pretrain_pile", STEPS="100000")
    job.reach(5)
    job.signal(*words)
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "75:0", "0"), (
        job.said()
    )
    assert "requeued" not in job.said()


def test_the_time_limits_signal_requeues_and_the_next_start_goes_on(
    slurm: Slurm, tmp_path: Path
) -> None:
    job = submit(
        slurm,
        tmp_path,
        "example_slurm_pile",
        options="-N2 --time=2 --signal=B:USR1@115",
        STEPS="800",
    )
    job.reach(5)
    slurm_cluster.wait_until(lambda: "requeued" in job.said(), 150, job.said)
    reached = min(job.counts())
    assert reached < 800, "it was done before its limit came near"
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=60")
    slurm.hurry(job.number)
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.said()
    assert job.counts() == [800, 800]
    assert "the time limit is near: the job is requeued" in job.said()
    assert "start 0; output in" in job.said(), (
        "the second start does not overwrite what the first one said"
    )
    assert "start 1; output in" in job.said()


@pytest.mark.parametrize(
    ("settings", "state"), [({"REQUEUE": "0"}, "FAILED"), ({"SIGNALS": "0"}, "COMPLETED")]
)
def test_the_batch_scripts_usr1_is_the_time_limits(
    slurm: Slurm, tmp_path: Path, settings: dict[str, str], state: str
) -> None:
    """It is not requeued unasked; it is, where the processes knew no signal yet, and died of it."""
    job = submit(slurm, tmp_path, "launch_base_config", STEPS="300", **settings)
    job.reach(5)
    job.signal("--batch", "--signal=USR1")
    if state == "COMPLETED":
        slurm_cluster.wait_until(lambda: "requeued" in job.said(), 60, job.said)
        slurm.hurry(job.number)
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["Restarts"]) == (
        state,
        "1" if state == "COMPLETED" else "0",
    ), job.said()


def test_a_cancelled_job_is_not_requeued(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "example_slurm_llama", STEPS="100000")
    job.reach(5)
    job.signal()
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert "requeued" not in job.said()


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_lost_node_requeues_and_the_next_start_goes_on(
    slurm: Slurm, tmp_path: Path, node: str
) -> None:
    """n1 has the batch script as well: with it Slurm itself requeues; of n2 the batch script finds that it answers no more."""
    job = submit(slurm, tmp_path, "example_slurm_ft_frompile", STEPS="400")
    job.reach(5)
    slurm.lose(node)
    slurm_cluster.wait_until(
        lambda: slurm.state(job.number) == "PENDING", 180, lambda: f"{job.said()}\n{slurm.logs()}"
    )
    reached = min(job.counts())
    assert reached < 400
    slurm.start(node)
    slurm.hurry(job.number)
    ended = slurm.ended(job.number)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), job.said()
    assert job.counts() == [400, 400]
    assert {
        rank: process["env"]["SLURMD_NODENAME"] for rank, process in job.started(1).items()
    } == {0: "n1", 1: "n2"}


def test_a_container_gets_every_variable_by_name(slurm: Slurm, tmp_path: Path) -> None:
    """Without pyxis srun knows none of its options: a recorder stands in for srun."""
    (tmp_path / "bin").mkdir()
    recorder = tmp_path / "bin" / "srun"
    recorder.write_text(
        f'#!{sys.executable}\nimport json, os, sys\nopen("{tmp_path}/srun.json", "w").write(json.dumps([sys.argv[1:], dict(os.environ)]))\n'
    )
    recorder.chmod(0o755)
    given = {
        name: "x"
        for name in (
            *lookup.list_accepted_names("pax train"),
            "NCCL_DEBUG",
            "WANDB_API_KEY",
            "MY_OWN",
            "HF_TOKEN",
        )
        if name not in {"NUM_GPUS", "USE_MULTIPROCESS", "LOG_DIR", "TFDS_DATA_DIR", "VOCAB_PATH"}
    }
    theirs = {
        "LD_LIBRARY_PATH": "/x",
        "PIP_CONSTRAINT": "/x",
        "NVIDIA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": "/x",
        "LC_ALL": "C",
    }
    folders = {
        "BASE_WORKSPACE_DIR": "w",
        "BASE_TFDS_DATA_DIR": "/d",
        "BASE_VOCAB_PATH": "/v/c4.model",
        "MOUNTS": "/c:/c",
    }
    job = submit(
        slurm,
        tmp_path,
        "launch_base_script",
        CONTAINER="ghcr.io#o/pax:latest",
        **given,
        **theirs,
        **folders,
    )
    assert slurm.ended(job.number)["JobState"] == "COMPLETED", job.said()
    argv, env = json.loads((tmp_path / "srun.json").read_text())
    named = (
        next(word for word in argv if word.startswith("--container-env="))
        .removeprefix("--container-env=")
        .split(",")
    )
    assert set(named) >= {
        *given,
        "NUM_GPUS",
        "USE_MULTIPROCESS",
        "LOG_DIR",
        "TFDS_DATA_DIR",
        "VOCAB_PATH",
    }
    assert not {*theirs, "PATH", "HOME", "PWD", "SLURM_JOB_ID", "CONTAINER", *folders} & set(named)
    assert "--container-image=ghcr.io#o/pax:latest" in argv
    assert (
        f"--container-mounts={tmp_path}/w:/opt/paxml/workspace,/d:/opt/paxml/datasets,/v/c4.model:/opt/paxml/vocab,/c:/c"
        in argv
    )
    assert argv[-2:] == ["bash", "run_base_config_multinode.sh"]
    assert env["LOG_DIR"] == "/opt/paxml/workspace/log_dir"
    assert not any(word.partition("=")[2] == "x" for word in argv), (
        "values are in the environment only"
    )


def test_they_are_what_an_environment_gets() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "scripts").glob("*.sub")}
    assert sorted(links.values()) == sorted(ROOT.glob("overlay/*/*/contrib/gpu/scripts_gpu/*.sub"))
    assert all(name == path.name for name, path in links.items())
