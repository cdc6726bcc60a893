"""What is reported of evaluations: the metrics of answers, and the loss of each real token."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.required_modules import need_modules

need_modules("jax", "t5x", "seqio")

import seqio

from rosetta.health import run_results
from rosetta.t5x import metric_report, trainer


@pytest.mark.parametrize("folder", ["run", "run/inference_eval"])
def test_metrics_go_to_the_folder_of_the_run(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = metric_report.MetricReport(f"{tmp_path}/{folder}")
    metrics = {
        "f1": seqio.metrics.Scalar(62.5),
        "an answer": seqio.metrics.Text("not a number"),
    }
    report("squad", 300, metrics, None, {}, [])
    report("empty", 300, {}, None, {}, [])
    (line,) = (tmp_path / "run/progress.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 300, "evaluation": {"squad": {"f1": 62.5}}}
    assert "squad: f1 62.5" in capsys.readouterr().err
    run_results.write_results()
    assert capsys.readouterr().err.splitlines()[-1].split() == ["squad", "f1", "62.5000"]


@pytest.mark.parametrize(
    ("factor", "loss"), [(None, 0.5), (4.0, 2.0), ("NUM_REAL_TARGET_TOKENS", 3.0)]
)
def test_the_loss_of_an_evaluation_is_that_of_a_real_token(factor: Any, loss: float) -> None:
    summary = {
        name: SimpleNamespace(value=value)
        for name, value in {
            "loss": 3.0,
            "loss_per_nonpadding_target_token": 0.5,
            "accuracy": 0.25,
            "z_loss": 1.0,
        }.items()
    }
    model = SimpleNamespace(_loss_normalizing_factor=factor)
    values = trainer.Trainer._select_evaluation_values(
        SimpleNamespace(_model=model),  # type: ignore[arg-type]  # of a trainer, only the model is read
        summary,
    )
    assert values == {"loss": loss, "token_accuracy": 0.25}
