"""Scalars of a run in MLflow, in a folder of this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rosetta.health import mlflow_tracking
from tests.support import errors, required_modules

URI, EXPERIMENT = mlflow_tracking.URI_VARIABLE, mlflow_tracking.EXPERIMENT_VARIABLE


def test_a_resumed_run_continues_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = required_modules.need_modules("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    environment = {URI: f"file:{tmp_path}/store", EXPERIMENT: "t5"}
    for step, loss in ((10, 2.5), (20, 2.25)):
        run = mlflow_tracking.MlflowRun("/runs/large", environment)
        run.log_scalars(step, {"loss": loss})
        run.close()
    other = mlflow_tracking.MlflowRun("/runs/small", environment)
    other.close()
    runs = mlflow.search_runs(experiment_names=["t5"], output_format="list")
    assert {found.info.run_name for found in runs} == {"large", "small"}
    (large,) = [found for found in runs if found.info.run_name == "large"]
    history = mlflow.MlflowClient().get_metric_history(large.info.run_id, "rosetta/loss")
    assert [(metric.step, metric.value) for metric in history] == [(10, 2.5), (20, 2.25)]
    assert large.info.status == "FINISHED"


def test_without_mlflow_a_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_tracking, "find_spec", lambda _: None)
    mlflow_tracking.check_installed({})
    with errors.expect_user_error(errors.MISSING, where=URI, remedy="pip install"):
        mlflow_tracking.check_installed({URI: "file:/store"})


def test_without_a_uri_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(mlflow_tracking, "importlib", SimpleNamespace(import_module=refuse))
    run = mlflow_tracking.MlflowRun("/runs/large", {})
    run.log_scalars(10, {"loss": 2.5})
    run.close()


def test_a_run_goes_on_if_mlflow_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> None:
        raise ConnectionError(f"{name} is not there")

    monkeypatch.setattr(mlflow_tracking, "find_spec", lambda _: object())
    monkeypatch.setattr(mlflow_tracking, "importlib", SimpleNamespace(import_module=fail))
    run = mlflow_tracking.MlflowRun("/runs/large", {URI: "http://127.0.0.1:1"})
    run.log_scalars(10, {"loss": 2.5})
    assert capsys.readouterr().err.count("ConnectionError") == 1
