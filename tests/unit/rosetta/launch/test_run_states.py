"""The states of runs, from what the programs of their places answer."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.run_description import Run
from rosetta.launch import run_records, run_states
from rosetta.launch.rendering import RUN_LABEL, Options
from rosetta.launch.run_records import RunRecord
from tests.support import errors

# Prints the answer that a test wrote down for this program.
PROGRAM = """#!/bin/sh
echo "$@" >> "$0.argv"
cat "$0.out"
cat "$0.err" >&2
exit {status}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def answer(program: str, *, out: str = "", err: str = "", status: int = 0) -> None:
    """Let a program answer this from now on."""
    path = Path("bin", program)
    path.write_text(PROGRAM.format(status=status))
    path.chmod(0o755)
    path.with_name(f"{program}.out").write_text(out)
    path.with_name(f"{program}.err").write_text(err)


def make_record(place: str, **handle: Any) -> RunRecord:
    """Return the written record of a run in a place."""
    record = run_records.make_record(place, Run("t5x", ("true",), "tiny"), Options(), "t5x-tiny")
    record = replace(record, handle=handle)
    run_records.write_record(record)
    return record


def make_container_record(**process: Any) -> RunRecord:
    """Return the record of a run in the container `first`, whose `docker run` has ended."""
    handle = {**run_states.describe_process(os.getpid()), "started": "1", **process}
    return make_record("docker", **handle, container="first", id="aa")


def describe_container(run_id: str) -> str:
    """Return what docker says of a container that runs."""
    labels = {RUN_LABEL: run_id} if run_id else None
    return json.dumps({"State": {"Status": "running"}, "Config": {"Labels": labels}})


@pytest.mark.parametrize(
    ("err", "process", "state"),
    [
        ("Error response from daemon: No such container: first", {}, "ended"),
        ("Error: No such container: first", {}, "ended"),
        # Another machine that shares the home does not know the container.
        ("Error: No such container: first", {"host": "elsewhere"}, "unknown"),
        ("dial unix /run/docker.sock: connect: no such file or directory", {}, "unknown"),
    ],
)
def test_a_container_that_docker_does_not_show(
    err: str, process: dict[str, str], state: str
) -> None:
    answer("docker", err=err, status=1)
    assert run_states.query_state(make_container_record(**process)).name == state


@pytest.mark.parametrize(("run_id", "state"), [("aa", "running"), ("bb", "ended"), ("", "ended")])
def test_the_container_of_another_run_with_the_same_name(run_id: str, state: str) -> None:
    answer("docker", out=describe_container(run_id))
    record = make_container_record()
    assert run_states.query_state(record).name == state
    if state == "ended":
        with errors.expect_user_error(errors.CONFLICT, where=f"run {record.number}"):
            run_states.cancel(record)
        assert "stop" not in Path("bin/docker.argv").read_text()


def test_a_cancelled_run_stays_cancelled() -> None:
    answer("docker", out=describe_container("aa"))
    record = replace(make_container_record(), cancelled=True)
    assert run_states.query_state(record).name == "cancelled"


@pytest.mark.parametrize(
    ("err", "state"),
    [
        ('Error from server (NotFound): jobsets.jobset.x-k8s.io "first" not found', "ended"),
        ("getting credentials: exec: executable gke-gcloud-auth-plugin not found", "unknown"),
    ],
)
def test_a_jobset_that_kubectl_does_not_show(err: str, state: str) -> None:
    answer("kubectl", err=err, status=1)
    record = make_record("jobset", jobset="first", namespace="", id="aa")
    assert run_states.query_state(record).name == state


@pytest.mark.parametrize(
    ("err", "state"),
    [
        ("slurm_load_jobs error: Invalid job id specified", "ended"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "unknown"),
    ],
)
def test_a_job_that_slurm_does_not_show(err: str, state: str) -> None:
    answer("squeue", err=err, status=1)
    answer("sacct", err="Slurm accounting storage is disabled", status=1)
    answer("scontrol", err=err, status=1)
    assert run_states.query_state(make_record("slurm", job="42", output="")).name == state


def test_a_handle_that_cannot_be_read() -> None:
    assert run_states.query_state(make_record("local", pid="many")).name == "unknown"


def test_cancel_does_not_touch_a_run_of_another_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was found by its folder has the number of another run of this home."""
    run = Run("t5x", ("true",), "tiny", env={"MODEL_DIR": "model"})
    theirs = run_records.make_record("local", run, Options(), "theirs")
    theirs = replace(theirs, handle=run_states.describe_process(os.getpid()))
    run_records.try_write_new_record(theirs)
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "other"))
    ours = make_record("local", **run_states.describe_process(os.getpid()))
    assert ours.number == theirs.number
    states = iter(("running", "ended"))
    monkeypatch.setattr(run_states, "query_state", lambda _: run_states.RunState(next(states)))
    monkeypatch.setattr(run_states, "_end_process", lambda _: None)
    assert run_states.cancel(run_records.find_record("model")).name == "cancelled"
    assert not run_records.read_record(ours.number).cancelled
    assert run_records.find_record("model").cancelled


def test_kubectl_follows_every_pod() -> None:
    record = make_record("jobset", jobset="first", namespace="", id="aa")
    record.run["nodes"] = 16
    argv = run_states.make_log_command(record, 20, follow=True)
    assert "--max-log-requests=16" in argv
