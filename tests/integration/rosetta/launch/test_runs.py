"""`rosetta runs` on a real Slurm and a real Docker: states, output, cancelling and repeating."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.core.cache import Cache
from builder.images.oci import layer
from rosetta.core.run_description import Run
from tests.support import container_engines, slurm_cluster

ROOT = Path(__file__).resolve().parents[4]
IMAGE = "rosetta-test/runs:1"
# Says that it begins, and waits for a file; SIGTERM and USR1 end it as a run that saved itself.
PROGRAM = """
trap 'echo saved; exit 75' TERM USR1
echo begins
i=0
while [ ! -e end ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 0.1; done
echo ends
"""


def make_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a command that is started in a folder."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("DOCKER_")},
    }


def read_state(run: Callable[..., subprocess.CompletedProcess[str]], number: int) -> dict[str, Any]:
    """Return what `rosetta runs status` says of a run."""
    done = run("runs", "status", str(number), "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)["result"]
    return result


def wait_for_state(
    run: Callable[..., subprocess.CompletedProcess[str]], number: int, state: str
) -> None:
    """Wait until a run is in a state."""
    line = f"run {number}: {state}"
    slurm_cluster.wait_until(
        lambda: run("runs", "status", str(number)).stdout.startswith(line),
        60,
        lambda: str(run("runs", "status", str(number))),
    )


def wait_for_output(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Wait until `rosetta runs logs` shows the first line of run 1."""
    slurm_cluster.wait_until(
        lambda: "begins" in run("runs", "logs", "1").stdout,
        60,
        lambda: run("runs", "logs", "1").stderr,
    )


@pytest.mark.slurm
def test_slurm(tmp_path: Path) -> None:
    slurm = slurm_cluster.start_cluster()
    environment = make_environment(tmp_path)

    def rosetta(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "rosetta.launch", *words]
        return slurm.run(*argv, cwd=tmp_path, env=environment)

    try:
        description = Run(
            "t5x",
            ("sh", "-c", PROGRAM),
            "tiny",
            gpus_per_node=1,
            env={"JAX_PLATFORMS": "cpu", "MODEL_DIR": str(tmp_path / "model")},
        )
        (tmp_path / "run.json").write_text(json.dumps(description.as_json()))
        words = ("submit", "--on=slurm", "--shared", "--description=run.json")
        done = rosetta(*words)
        assert done.returncode == 0, done.stderr
        wait_for_state(rosetta, 1, "running")
        state = read_state(rosetta, 1)
        assert state["handle"]["job"] == done.stdout.split()[-1]
        # Slurm chose the file of the output.
        assert Path(state["handle"]["output"]).parent == tmp_path
        wait_for_output(rosetta)
        refused = rosetta("runs", "resubmit", "1")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        cancelled = rosetta("runs", "cancel", "1")
        assert cancelled.returncode == 0, cancelled.stderr
        assert slurm.job(state["handle"]["job"])["JobState"] == "CANCELLED"
        assert read_state(rosetta, 1)["state"] == "cancelled"
        (tmp_path / "end").touch()
        again = rosetta("runs", "resubmit", "1")
        assert again.returncode == 0, again.stderr
        wait_for_state(rosetta, 2, "completed")
        state = read_state(rosetta, 2)
        assert (state["again"], slurm.job(state["handle"]["job"])["JobState"]) == (1, "COMPLETED")
        assert rosetta("runs", "logs", "2").stdout.splitlines()[-2:] == ["begins", "ends"]
        listed = rosetta("runs", "list").stdout.splitlines()
        assert [line.split()[:3] for line in listed[1:]] == [
            ["1", "cancelled", "slurm"],
            ["2", "completed", "slurm"],
        ]
        # A job that waits is cancelled before it starts.
        assert rosetta(*words, "--sbatch=--hold").returncode == 0
        assert read_state(rosetta, 3)["state"] == "waiting"
        assert rosetta("runs", "cancel", "3").returncode == 0
        assert read_state(rosetta, 3)["state"] == "cancelled"
    finally:
        slurm.stop()


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image with the shell of this machine."""
    try:
        engine("version")
    except (OSError, AssertionError, subprocess.TimeoutExpired):
        pytest.skip("NOT TESTED: no Docker daemon answers; start dockerd")
    cache = Cache(tmp_path / "cache")
    made = container_engines.make_base_layer(cache, programs=("sh", "sleep"))
    with gzip.open(layer.blob_path(cache, made.digest)) as file:
        engine("import", "-", IMAGE, stdin=file.read())
    yield IMAGE
    engine("image", "rm", "--force", IMAGE)


def engine(*words: str, stdin: bytes = b"") -> bytes:
    """Run docker, and return its output."""
    done = subprocess.run(
        ["docker", *words], input=stdin, capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


# The daemon of a sandbox may not lift this limit. All else goes to the real docker.
WITHOUT_LIMIT = """#!/bin/sh
for word do
  shift
  [ "$word" = --ulimit=memlock=-1 ] || set -- "$@" "$word"
done
exec {docker} "$@"
"""


@pytest.mark.engine
def test_docker(image: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(WITHOUT_LIMIT.format(docker=shutil.which("docker")))
    program.chmod(0o755)
    environment = make_environment(tmp_path)
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    argv = [sys.executable, "-P", "-m", "rosetta.launch"]

    def rosetta(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*argv, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    script = PROGRAM.replace("-e end", "-e /shared/end")
    description = Run(
        "t5x",
        ("/bin/sh", "-c", script),
        "tiny",
        processes_per_node="node",
        env={"JAX_PLATFORMS": "cpu"},
        mounts=((str(tmp_path), "/shared"),),
    )
    (tmp_path / "run.json").write_text(json.dumps(description.as_json()))
    words = ("run", "--on=docker", f"--image={image}", "--description=run.json")
    with subprocess.Popen(
        [*argv, *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for_state(rosetta, 1, "running")
        name = read_state(rosetta, 1)["handle"]["container"]
        assert engine("container", "inspect", "--format={{.State.Running}}", name) == b"true\n"
        wait_for_output(rosetta)
        assert rosetta("runs", "resubmit", "1").returncode == 2
        cancelled = rosetta("runs", "cancel", "1")
        assert cancelled.returncode == 0, cancelled.stderr
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (75, ["begins", "saved"])
    assert read_state(rosetta, 1)["state"] == "cancelled"
    assert name.encode() not in engine("container", "ls", "--all", "--format={{.Names}}")
    (tmp_path / "end").touch()
    again = rosetta("runs", "resubmit", "1")
    assert (again.returncode, again.stdout.split()) == (0, ["begins", "ends"])
    assert read_state(rosetta, 2)["state"] == "ended"
