"""The records of runs: what they have, where they are, and which run they belong to."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rosetta.commands import runs
from rosetta.core.run_description import Run
from rosetta.launch import run_records, run_start
from rosetta.launch.node_processes import ProcessLayout
from rosetta.launch.rendering import Options
from rosetta.launch.run_records import RunRecord
from tests.support import errors

COPY = Path("model", "rosetta", "run.json")
SECRET = "abcdefghijklmnop"  # noqa: S105 (of a test)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def make_run(entry: tuple[str, ...] = ("true",), **fields: Any) -> Run:
    """Return a run on the CPU, with two processes."""
    env = {"MODEL_DIR": "model", "JAX_PLATFORMS": "cpu", **fields.pop("env", {})}
    return Run("t5x", entry, "tiny", gpus_per_node=2, env=env, **fields)


def write_new_record(run: Run | None = None, place: str = "local", **fields: Any) -> RunRecord:
    """Return the written record of a run that has a handle."""
    record = run_records.make_record(place, run or make_run(), Options(), "t5x-tiny", **fields)
    record = replace(record, handle={"pid": 1})
    run_records.try_write_new_record(record)
    return record


@pytest.mark.parametrize(
    ("fields", "extra", "hidden"),
    [
        ({"gin": {"DATA": f"text:https://host/a.txt?sig={SECRET}"}}, (), "gin"),
        ({"entry": ("true", f"--wandb-token={SECRET}")}, (), "entry"),
        ({}, (f"--export=ALL,WANDB_API_KEY={SECRET}",), "options.extra"),
        # The value of a secret variable, in another place.
        ({"env": {"HF_TOKEN": SECRET}, "gin": {"x": f"a {SECRET}"}}, (), "gin"),
    ],
)
def test_secrets_are_in_no_field(
    home: Path, fields: dict[str, Any], extra: tuple[str, ...], hidden: str
) -> None:
    record = run_records.make_record("local", make_run(**fields), Options(extra=extra), "a")
    run_records.try_write_new_record(record)
    texts = [path.read_text() for path in (home / "runs/1/run.json", COPY)]
    assert not [text for text in texts if SECRET in text]
    assert run_records.read_record(1).hidden == (hidden,)
    with errors.expect_user_error(errors.MISSING, where="run 1", names=hidden):
        run_records.read_record(1).read_run({"HF_TOKEN": SECRET})


def test_a_variable_with_the_value_of_a_secret_comes_from_the_environment() -> None:
    variables = {"HF_TOKEN": SECRET, "SERVER": f"host/{SECRET}"}
    run = make_run(env=variables)
    write_new_record(run)
    record = run_records.read_record(1)
    assert (record.secrets, record.hidden) == (("HF_TOKEN", "SERVER"), ())
    assert record.read_run(variables) == run


def test_the_copy_follows_the_record() -> None:
    record = write_new_record()
    run_records.update_record(record, status=3)
    run_records.update_record(record, cancelled=True)
    for kept in (run_records.read_record(1), run_records.find_record("model")):
        assert (kept.status, kept.cancelled) == (3, True)


def test_the_first_node_writes_the_copy() -> None:
    first = write_new_record(node={"node": 0, "coordinator": "a:1"})
    second = write_new_record(node={"node": 1, "coordinator": "a:1"})
    run_records.update_record(second, status=0)
    run_records.discard_record(second)
    assert run_records.find_record("model") == first


def test_a_later_run_in_the_folder_keeps_its_copy() -> None:
    first, second = write_new_record(), write_new_record()
    run_records.update_record(first, status=3)
    run_records.discard_record(first)
    assert run_records.find_record("model") == second


def test_a_run_that_did_not_start_leaves_the_earlier_one_to_its_folder() -> None:
    first, second = write_new_record(), write_new_record(again=1)
    run_records.discard_record(second)
    assert run_records.find_record("model") == first


def test_discarding_a_run_without_a_folder_deletes_nothing_else() -> None:
    other = Path("rosetta/run.json")
    other.parent.mkdir()
    other.write_text("{}")
    record = replace(write_new_record(), folder="")
    run_records.write_record(record)
    run_records.discard_record(record)
    assert other.exists()


@pytest.mark.slow
def test_a_home_that_is_lost_meanwhile(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The run has ended well, so that its status counts."""
    run = make_run(("sh", "-c", f"rm -rf {home}; touch {home}"))
    assert run_start.start_local(run, ProcessLayout(2, 1, 0, "")) == 0
    assert "run 1" in capfd.readouterr().err


def test_a_record_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    write_new_record()

    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    with errors.expect_user_error(errors.DENIED, where="run 1"):
        run_records.read_record(1)


def test_progress_is_that_of_the_run() -> None:
    line = '{"step": 3, "loss": 1.5}\n'
    Path("progress.jsonl").write_text(line)
    record = write_new_record(place="slurm")
    assert runs._read_progress(replace(record, folder="")) == ""
    # A relative folder is in the one where the run was started.
    Path("model").mkdir()
    shutil.move("progress.jsonl", "model")
    os.chdir("/")
    assert runs._read_progress(record) == "step 3, loss 1.5"


def test_the_log_is_that_of_the_training() -> None:
    record = write_new_record()
    logs = Path("model/logs")
    logs.mkdir()
    for age, name in ((9, "train.log"), (1, "eval.log")):
        (logs / name).touch()
        os.utime(logs / name, (time.time() - age,) * 2)
    assert runs._find_log_file(record) == (logs / "train.log").resolve()
    assert runs._find_log_file(replace(record, folder="")) is None
