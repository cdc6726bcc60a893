"""Scalars of a run in MLflow: a stand-in module, and MLflow itself where it is installed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rosetta.health import mlflow_tracking
from tests.support import required_modules

URI, EXPERIMENT = mlflow_tracking.URI_VARIABLE, mlflow_tracking.EXPERIMENT_VARIABLE
STAND_IN = """
from types import SimpleNamespace
runs, uris, experiments = [], [], []
set_tracking_uri, set_experiment = uris.append, experiments.append
def search_runs(filter_string, max_results, output_format):
    key, _, value = filter_string.partition(" = ")
    tag = key.removeprefix("tags.`").removesuffix("`")
    matching = [run for run in runs if run.tags.get(tag) == value.strip("'")]
    return matching[:max_results]
def start_run(run_id, run_name, tags):
    for run in runs:
        if run.info.run_id == run_id:
            run.info.status = "RUNNING"
            return run
    assert run_id is None
    info = SimpleNamespace(run_id=f"id{len(runs)}", run_name=run_name, status="RUNNING")
    runs.append(SimpleNamespace(info=info, tags=tags, metrics=[]))
    return runs[-1]
def log_metrics(metrics, step, run_id):
    (run,) = [run for run in runs if run.info.run_id == run_id]
    run.metrics.append((step, metrics))
class MlflowClient:
    def set_terminated(self, run_id):
        (run,) = [run for run in runs if run.info.run_id == run_id]
        run.info.status = "FINISHED"
"""


@pytest.fixture(autouse=True)
def _restore_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in mlflow_tracking.REQUEST_LIMITS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def write_module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mlflow.py").write_text(text)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "mlflow")
    monkeypatch.syspath_prepend(str(folder))


def report(run: mlflow_tracking.MlflowRun, step: int, loss: float) -> None:
    """Report a loss in a thread of its own, as trainers do."""
    thread = threading.Thread(target=run.log_scalars, args=(step, {"loss": loss}))
    thread.start()
    thread.join()


def train_twice(environment: dict[str, str]) -> None:
    """Report a run that ends and resumes, and another run."""
    for step, loss in ((10, 2.5), (20, 2.25)):
        run = mlflow_tracking.MlflowRun("/runs/large", environment)
        report(run, step, loss)
        run.close()
    other = mlflow_tracking.MlflowRun("/runs/small", environment)
    report(other, 10, 3.0)
    other.close()


def test_a_resumed_run_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, STAND_IN, monkeypatch)
    train_twice({URI: "http://mlflow:5000", EXPERIMENT: "t5"})
    mlflow: Any = sys.modules["mlflow"]
    assert set(mlflow.uris) == {"http://mlflow:5000"}
    assert set(mlflow.experiments) == {"t5"}
    large, small = mlflow.runs
    assert (large.info.run_name, small.info.run_name) == ("large", "small")
    assert large.metrics == [(10, {"rosetta/loss": 2.5}), (20, {"rosetta/loss": 2.25})]
    assert small.metrics == [(10, {"rosetta/loss": 3.0})]
    assert large.info.status == small.info.status == "FINISHED"


def test_a_resumed_run_continues_the_same_run_of_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = required_modules.need_modules("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train_twice({URI: f"file:{tmp_path}/store", EXPERIMENT: "t5"})
    runs = mlflow.search_runs(experiment_names=["t5"], output_format="list")
    assert sorted(run.info.run_name for run in runs) == ["large", "small"]
    (large,) = [run for run in runs if run.info.run_name == "large"]
    history = mlflow.MlflowClient().get_metric_history(large.info.run_id, "rosetta/loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 2.5), (20, 2.25)]
    assert large.info.status == "FINISHED"


def test_only_a_report_talks_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, STAND_IN, monkeypatch)
    retries, timeout = mlflow_tracking.REQUEST_LIMITS
    monkeypatch.setenv(retries, "1")
    run = mlflow_tracking.MlflowRun("/runs/large", {URI: "http://mlflow:5000"})
    assert "mlflow" not in sys.modules
    report(run, 10, 2.5)
    assert "mlflow" in sys.modules
    # What a user set stays.
    assert os.environ[retries] == "1"
    assert int(os.environ[timeout]) <= 10


def test_without_mlflow_a_run_goes_on_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_tracking, "find_spec", lambda _: None)
    run = mlflow_tracking.MlflowRun("/runs/large", {URI: "http://mlflow:5000"})
    for step in (10, 20):
        report(run, step, 2.5)
    run.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert URI in line


def test_without_a_uri_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, STAND_IN, monkeypatch)
    run = mlflow_tracking.MlflowRun("/runs/large", {})
    report(run, 10, 2.5)
    run.close()
    assert "mlflow" not in sys.modules


def test_a_run_goes_on_if_mlflow_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_module(tmp_path, "raise ConnectionError('not there')", monkeypatch)
    run = mlflow_tracking.MlflowRun("/runs/large", {URI: "http://127.0.0.1:1"})
    for step in (10, 20):
        report(run, step, 2.5)
    run.close()
    assert capsys.readouterr().err.count("ConnectionError") == 1
