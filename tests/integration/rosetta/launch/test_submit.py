"""`rosetta submit --on slurm` on a real Slurm: what arrives in the processes, and a run that is started again at its time limit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rosetta.core.run_description import Run
from tests.support import fake_launchers, slurm_cluster
from tests.unit.rosetta.launch.test_hostile import HOSTILE, SECRET_PARTS, SECRETS

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def slurm() -> Iterator[slurm_cluster.Slurm]:
    started = slurm_cluster.start_cluster()
    yield started
    started.stop()


def submit(slurm: slurm_cluster.Slurm, folder: Path, run: Run, *words: str) -> str:
    """Submit it by the command line; return the job's number."""
    (folder / "run.json").write_text(json.dumps(run.as_json()))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta.launch",
        "submit",
        "--on=slurm",
        "--description=run.json",
        "--shared",
        f"--output={folder}/out",
        *words,
    ]
    done = slurm.run(*argv, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_values_arrive_in_each_process(slurm: slurm_cluster.Slurm, tmp_path: Path) -> None:
    (tmp_path / "dump.py").write_text(
        fake_launchers.DUMP.replace("sys.argv[1]", 'sys.argv[1] + os.environ["SLURM_PROCID"]')
    )
    env = {
        **{f"NAME_{number}": value for number, value in enumerate(HOSTILE)},
        **SECRETS,
        "JAX_PLATFORMS": "cpu",
    }
    run = Run(
        "pax",
        (sys.executable, "-S", str(tmp_path / "dump.py"), str(tmp_path / "record"), *HOSTILE),
        "Pile126M",
        nodes=2,
        gpus_per_node=2,
        env=env,
        xla_flags={"xla_dump_to": "/a b"},
    )
    job = submit(slurm, tmp_path, run, "--job-name=a $(touch pwned)")
    assert slurm.ended(job)["JobState"] == "COMPLETED", (tmp_path / "out").read_text()
    records = [json.loads((tmp_path / f"record{rank}").read_text()) for rank in range(4)]
    assert {each["env"]["SLURMD_NODENAME"] for each in records} == {"n1", "n2"}
    for each in records:
        assert each["argv"] == list(HOSTILE)
        assert {name: each["env"].get(name) for name in env} == env
        assert each["env"]["XLA_FLAGS"] == "--xla_dump_to='/a b'"
        assert each["env"]["SLURM_NTASKS"] == "4"
    assert not list(tmp_path.rglob("pwned"))
    told = slurm.said("scontrol", "--oneliner", "show", "job", job)
    assert not [part for part in SECRET_PARTS if part in told]


def test_at_its_time_limit_it_is_started_again_and_goes_on(
    slurm: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    program = f"""
import os, signal, sys, time
from pathlib import Path
rank, folder = os.environ["SLURM_PROCID"], Path({str(tmp_path)!r})
def early(*_):
    time.sleep(3 * int(rank))  # one is done with its part of the checkpoint before the other
    (folder / f"checkpoint{{rank}}").write_text("step")
    sys.exit(75)
signal.signal(signal.SIGUSR1, early)
if (folder / f"checkpoint{{rank}}").exists():
    print("goes on", rank, flush=True)
    sys.exit()
print("begins", rank, flush=True)
time.sleep(600)
"""
    run = Run(
        "pax",
        (sys.executable, "-S", "-c", program),
        "Pile126M",
        nodes=2,
        gpus_per_node=1,
        env={"JAX_PLATFORMS": "cpu"},
    )
    job = submit(slurm, tmp_path, run, "--time=1", "--warning=50", "--requeue")
    slurm_cluster.wait_until(
        lambda: slurm.job(job)["Restarts"] == "1",
        150,
        lambda: f"{slurm.job(job)}\n{(tmp_path / 'out').read_text()}",
    )
    slurm.hurry(job)
    assert slurm.ended(job)["JobState"] == "COMPLETED"
    said = (tmp_path / "out").read_text().splitlines()
    assert sorted(line for line in said if line.startswith(("begins", "goes on"))) == [
        "begins 0",
        "begins 1",
        "goes on 0",
        "goes on 1",
    ]
    assert "rosetta: the time limit is near: the job is requeued" in "\n".join(said)


def test_sbatch_takes_every_option(slurm: slurm_cluster.Slurm, tmp_path: Path) -> None:
    """By its own check; GPUs, which this Slurm has none of, are what it refuses."""
    run = Run(
        "pax",
        ("rosetta", "pax", "train"),
        "Pile126M",
        nodes=2,
        gpus_per_node=2,
        env={"JAX_PLATFORMS": "cpu"},
    )
    (tmp_path / "run.json").write_text(json.dumps(run.as_json()))
    words = [
        "--sbatch=--test-only",
        "--time=01:00:00",
        "--partition=all",
        "--account=me",
        "--requeue",
        "--job-name=x",
        "--warning=300",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta.launch",
        "submit",
        "--on=slurm",
        "--description=run.json",
        *words,
    ]
    done = slurm.run(*argv, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert "to start at" in done.stderr
    (tmp_path / "run.json").write_text(json.dumps({**run.as_json(), "env": {}}))
    done = slurm.run(*argv, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "Invalid generic resource (gres) specification" in done.stderr
