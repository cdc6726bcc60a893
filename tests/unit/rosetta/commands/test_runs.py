"""`rosetta runs`: the records of runs, their states, and what ends or repeats them.

Slurm and Docker are in tests/integration/rosetta/launch/test_runs.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rosetta.core.run_description import Run
from rosetta.launch import run_records, run_states
from rosetta.launch.rendering import Options
from tests.support import errors, fake_launchers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
# Trains: counts to 3 again, writes a log, and waits until SIGTERM ends it or the file `end` exists.
TRAINER = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
os.makedirs("model/logs", exist_ok=True)
with open("model/progress.jsonl", "a") as file:
    print(json.dumps({"step": 3, "loss": 1.5}), file=file)
with open("model/logs/train.log", "a") as file:
    print("token:", os.environ["HF_TOKEN"], file=file)
print("begins", flush=True)
deadline = time.monotonic() + 60
while not os.path.exists("end") and time.monotonic() < deadline:
    time.sleep(0.05)
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@dataclass
class Place:
    """A folder in which runs are started, with its own home."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_TOKEN": "hf_abcdefghijklmnopqrst",
        }

    def make_argv(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "rosetta.launch", *words]

    def rosetta(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.make_argv(*words),
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a run, and wait until its program runs."""
        process = subprocess.Popen(
            self.make_argv(*words),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        return process

    def write_description(self, **fields: Any) -> None:
        values = {"processes_per_node": "node", "nodes": 1, **fields}
        run = Run(
            "t5x",
            (sys.executable, "-S", "-c", TRAINER),
            "tiny",
            env={
                "JAX_PLATFORMS": "cpu",
                "MODEL_DIR": "model",
                "HF_TOKEN": self.environment["HF_TOKEN"],
            },
            **values,
        )
        (self.folder / "run.json").write_text(json.dumps(run.as_json()))

    def read_state(self, number: int = 1) -> dict[str, Any]:
        done = self.rosetta("runs", "status", str(number), "--json")
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)["result"]
        return result

    def refused(self, *words: str, **variables: str) -> errors.UserError:
        """Run a command that has to be refused in one line; return its error."""
        done = self.rosetta(*words, "--json", **variables)
        assert done.returncode == 2, done.stdout + done.stderr
        assert len(done.stderr.splitlines()) == 1
        return errors.from_document(json.loads(done.stdout))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    made.write_description()
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def wait_for_end(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


def test_a_run_from_start_to_repetition(place: Place) -> None:
    assert json.loads(place.rosetta("runs", "list", "--json").stdout)["result"]["runs"] == []
    process = place.start("run", "--description=run.json")
    state = place.read_state()
    assert (state["state"], state["place"], state["progress"]) == (
        "running",
        "local",
        "step 3, loss 1.5",
    )
    assert state["folder"] == str(place.folder / "model")
    listed = place.rosetta("runs", "list").stdout.splitlines()
    assert listed[1].split()[:3] == ["1", "running", "local"]
    # The run's folder names it, too.
    assert place.rosetta("runs", "status", "model").stdout.startswith("run 1: running")
    error = place.refused("runs", "cancel", "2")
    assert error.kind == errors.MISSING
    log = place.rosetta("runs", "logs", "1")
    assert log.stdout == f"token: {place.environment['HF_TOKEN']}\n"
    done = place.rosetta("runs", "resubmit", "1")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    cancelled = place.rosetta("runs", "cancel", "1")
    assert cancelled.returncode == 0, cancelled.stderr
    assert wait_for_end(process) == 75
    assert place.read_state()["state"] == "cancelled"
    assert place.refused("runs", "cancel", "1").kind == errors.CONFLICT
    # The secret is not in the record, and comes from the environment.
    records = [*place.folder.rglob("run.json")]
    assert not [
        path
        for path in records
        if path != place.folder / "run.json" and place.environment["HF_TOKEN"] in path.read_text()
    ]
    done = place.rosetta("runs", "resubmit", "1", HF_TOKEN="")
    assert (done.returncode, "HF_TOKEN" in done.stderr) == (2, True)
    (place.folder / "end").touch()
    done = place.rosetta("runs", "resubmit", "1")
    assert (done.returncode, done.stdout) == (0, "begins\n"), done.stderr
    assert place.read_state(2)["again"] == 1
    assert (place.folder / "model/logs/train.log").read_text().count("token") == 2


def test_several_processes_leave_their_status(place: Place) -> None:
    place.write_description(processes_per_node="gpu", gpus_per_node=2)
    (place.folder / "end").touch()
    done = place.rosetta("run", "--description=run.json", STATUS="3")
    assert done.returncode == 3
    state = place.read_state()
    assert (state["state"], state["status"]) == ("failed", 3)
    assert place.rosetta("run", "--description=run.json").returncode == 0
    assert place.read_state(2)["state"] == "completed"


def test_cancel_ends_all_processes(place: Place) -> None:
    place.write_description(processes_per_node="gpu", gpus_per_node=2)
    process = place.start("run", "--description=run.json")
    assert place.rosetta("runs", "cancel", "1").returncode == 0
    assert wait_for_end(process) == 75
    assert place.read_state()["status"] == 75


def test_a_program_that_does_not_exist_is_no_run(place: Place) -> None:
    document = json.loads((place.folder / "run.json").read_text())
    (place.folder / "run.json").write_text(json.dumps({**document, "entry": ["no-such-program"]}))
    assert place.rosetta("run", "--description=run.json").returncode == 2
    assert json.loads(place.rosetta("runs", "list", "--json").stdout)["result"]["runs"] == []
    assert not (place.folder / "model/rosetta/run.json").exists()


def test_logs_are_followed_to_the_end(place: Place) -> None:
    run = place.start("run", "--description=run.json")
    process = subprocess.Popen(
        place.make_argv("runs", "logs", "1", "--follow"),
        cwd=place.folder,
        env=place.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("token")
    with (place.folder / "model/logs/train.log").open("a") as file:
        file.write("more\n")
    assert process.stdout.readline() == "more\n"
    (place.folder / "end").touch()
    assert wait_for_end(run) == 0
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_full_or_read_only_home_does_not_stop_a_run(place: Place) -> None:
    (place.folder / "end").touch()
    (place.folder / "file").touch()
    done = place.rosetta("run", "--description=run.json", ROSETTA_HOME=f"{place.folder}/file")
    assert done.returncode == 0
    assert "ROSETTA_HOME" in done.stderr or "file" in done.stderr


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("status", "7"), errors.MISSING),
        (("status", "nowhere"), errors.MISSING),
        (("cancel", "0"), errors.MISSING),
    ],
)
def test_a_run_that_is_not_there(place: Place, words: tuple[str, ...], kind: str) -> None:
    assert place.refused("runs", *words).kind == kind


def test_wrong_words_are_one_line(place: Place) -> None:
    for words in (
        ("logs", "7"),
        ("resubmit", "7"),
        ("nope",),
        ("status",),
        ("logs", "1", "--lines", "0"),
        ("list", "1"),
    ):
        done = place.rosetta("runs", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), words


def test_damaged_records(place: Place) -> None:
    (place.folder / "end").touch()
    assert place.rosetta("run", "--description=run.json").returncode == 0
    path = place.folder / ".rosetta/runs/1/run.json"
    document = json.loads(path.read_text())
    for text, kind in (
        ("{", errors.DAMAGED),
        ("[]", errors.DAMAGED),
        (json.dumps({**document, "schema": 9}), errors.UNSUPPORTED),
        (json.dumps({**document, "colour": "red"}), errors.DAMAGED),
        (json.dumps({**document, "handle": 5}), errors.DAMAGED),
    ):
        path.write_text(text)
        assert place.refused("runs", "status", "1").kind == kind
        assert place.rosetta("runs", "list").returncode == 0


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run_records.RunRecord:
    """The record of this process, as a run on this machine."""
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    made = run_records.make_record("local", Run("t5x", ("true",), "tiny"), Options(), "t5x-tiny")
    made.handle.update(run_states.describe_process(os.getpid()))
    return made


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "running"),
        # The kernel gave the id to a process that began at another time.
        ({"started": "1"}, "ended"),
        ({"started": ""}, "ended"),
        ({"boot": "earlier"}, "ended"),
        ({"host": "elsewhere"}, "unknown"),
        ({"namespace": "pid:[1]"}, "unknown"),
    ],
)
def test_which_process_is_meant(
    record: run_records.RunRecord, change: dict[str, str], state: str
) -> None:
    record.handle.update(change)
    assert run_states.query_state(record).name == state


def test_a_recycled_process_id_gets_no_signal(record: run_records.RunRecord) -> None:
    """The process with the id of the run lives on, and `cancel` refuses."""
    with subprocess.Popen(["sleep", "60"]) as other:
        record.handle.update(run_states.describe_process(other.pid), started="1")
        with errors.expect_user_error(errors.CONFLICT, where=f"run {record.number}"):
            run_states.cancel(record)
        run_states._end_process(record)
        time.sleep(0.2)
        assert other.poll() is None
        other.kill()


def test_a_run_that_does_not_end(record: run_records.RunRecord) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        record.handle.update(run_states.describe_process(other.pid))
        with errors.expect_user_error(errors.FAILED, where=f"run {record.number}"):
            run_states.cancel(record, seconds=1)
        other.kill()


def test_numbers_are_never_given_twice(record: run_records.RunRecord) -> None:
    run = Run("t5x", ("true",), "tiny")
    numbers = [run_records.make_record("local", run, Options(), "a").number for _ in range(3)]
    assert numbers == [record.number + 1, record.number + 2, record.number + 3]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("PENDING Priority", "waiting"),
        ("RUNNING None", "running"),
        ("COMPLETING None", "running"),
        ("COMPLETED", "completed"),
        ("CANCELLED by 0", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("TIMEOUT", "failed"),
        ("NODE_FAIL", "failed"),
        ("OUT_OF_MEMORY", "failed"),
    ],
)
def test_states_of_slurm(line: str, state: str) -> None:
    assert run_states._convert_slurm_state(line).name == state


def test_kubernetes(tmp_path: Path) -> None:
    """A JobSet: its states, its logs, its end, and the same run under another name."""
    launchers = fake_launchers.make_launchers(tmp_path)
    (tmp_path / "secrets.json").write_text("{}")
    env = {"JAX_PLATFORMS": "cpu"}
    entry = tuple(launchers.entry)
    description = Run("t5x", entry, "tiny", env=env, processes_per_node="node")
    (tmp_path / "run.json").write_text(json.dumps(description.as_json()))

    def rosetta(*words: str) -> subprocess.CompletedProcess[str]:
        return launchers.rosetta(*words)

    words = ("submit", "--on=jobset", "--image=me/t5x", "--job-name=first", "--namespace=team")
    done = rosetta(*words, "--description=run.json")
    assert done.returncode == 0, done.stderr
    status = tmp_path / "bin" / "jobset.json"
    for document, state in (
        ({}, "waiting"),
        ({"replicatedJobsStatus": [{"active": 1}], "restarts": 2}, "running"),
        ({"conditions": [{"type": "Failed", "status": "True", "message": "a pod"}]}, "failed"),
        ({"conditions": [{"type": "Completed", "status": "True"}]}, "completed"),
    ):
        status.write_text(json.dumps(document))
        shown = rosetta("runs", "status", "1", "--json")
        assert json.loads(shown.stdout)["result"]["state"] == state
    # The output can be read after the end, too.
    assert rosetta("runs", "logs", "1").stdout.split()[0] == "logs"
    assert "--tail=20" in launchers.argv("kubectl")
    rosetta("runs", "status", "1")
    assert launchers.argv("kubectl")[1:4] == ["get", "jobset", "first"]
    assert "--namespace=team" in launchers.argv("kubectl")
    done = rosetta("runs", "resubmit", "1")
    assert done.returncode == 0, done.stderr
    status.write_text(json.dumps({"replicatedJobsStatus": [{"active": 1}]}))
    second = json.loads(rosetta("runs", "status", "2", "--json").stdout)["result"]
    assert re.fullmatch(r"first-[0-9a-f]{6}", second["handle"]["jobset"])
    logs = rosetta("runs", "logs", "2", "--follow").stdout.split()
    assert logs[0] == "logs"
    assert "--follow" in logs
    assert "--max-log-requests=1" in logs
    assert f"--selector=rosetta.run={second['handle']['id']}" in logs
    done = rosetta("runs", "cancel", "2")
    assert done.returncode == 0, done.stderr
    assert not status.exists()
    shown = rosetta("runs", "status", "2", "--json")
    assert json.loads(shown.stdout)["result"]["state"] == "cancelled"
    # A later JobSet has the name of the first run.
    assert rosetta(*words, "--description=run.json").returncode == 0
    status.write_text(json.dumps({"replicatedJobsStatus": [{"active": 1}]}))
    assert rosetta("runs", "status", "3").stdout.startswith("run 3: running")
    assert rosetta("runs", "status", "1").stdout.startswith("run 1: ended")
    assert rosetta("runs", "cancel", "1").returncode == 2
    assert status.exists()


def test_a_place_that_does_not_answer(place: Place) -> None:
    """Without the program of a place, the state is not known, and nothing is done."""
    (place.folder / "bin").mkdir()
    sbatch = place.folder / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 42\n")
    sbatch.chmod(0o755)
    path = f"{place.folder}/bin:/nowhere"
    done = place.rosetta("submit", "--on=slurm", "--description=run.json", PATH=path)
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 42\n"), done.stderr
    shown = place.rosetta("runs", "status", "1", "--json", PATH=path)
    result = json.loads(shown.stdout)["result"]
    assert (result["state"], result["handle"]["job"]) == ("unknown", "42")
    assert place.refused("runs", "cancel", "1", PATH=path).kind == errors.UNREACHABLE
    done = place.rosetta("runs", "resubmit", "1", PATH=path)
    assert (done.returncode, "--force" in done.stderr) == (2, True)
    done = place.rosetta("runs", "resubmit", "1", "--force", PATH=path)
    assert done.returncode == 0, done.stderr
