"""Against a stand-in module: wandb itself wants an account."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rosetta.health import weights_and_biases

STAND_IN = """
import json, os
def _told(*words):
    with open(os.environ["STAND_IN"], "a") as file:
        file.write(json.dumps(words) + "\\n")
class Run:
    def log(self, scalars, step):
        if step == 13:
            raise ConnectionError(f"no way to send with {os.environ['WANDB_API_KEY']}")
        _told("log", scalars, step)
    def finish(self):
        _told("finish")
def init(**words):
    _told("init", words)
    return Run()
"""
KEY = "very-secret-0123456789"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "wandb.py").write_text(STAND_IN)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("STAND_IN", str(tmp_path / "told"))
    monkeypatch.setenv(weights_and_biases.API_KEY_VARIABLE, KEY)
    return tmp_path / "told"


def test_scalars_go_there_under_the_names_that_tensorboard_has(told: Path) -> None:
    run = weights_and_biases.WandbRun("/runs/large", {weights_and_biases.API_KEY_VARIABLE: KEY})
    run.log_scalars(10, {"loss": 2.5})
    run.close()
    init, *others = told.read_text().splitlines()
    assert '"project": "rosetta", "name": "large"' in init
    assert others == ['["log", {"rosetta/loss": 2.5}, 10]', '["finish"]']


def test_a_run_goes_on_without_it_and_no_key_is_printed(
    told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = weights_and_biases.WandbRun("/runs/large", {weights_and_biases.API_KEY_VARIABLE: KEY})
    run.log_scalars(13, {"loss": 2.5})
    run.log_scalars(20, {"loss": 2.5})
    run.close()
    assert len(told.read_text().splitlines()) == 1
    err = capsys.readouterr().err
    assert (
        err
        == "rosetta: Weights & Biases gets nothing any more: ConnectionError: no way to send with ...\n"
    )


def test_without_a_key_nothing_is_imported(told: Path) -> None:
    run = weights_and_biases.WandbRun("/runs/large", {})
    run.log_scalars(10, {"loss": 2.5})
    run.close()
    assert not told.exists()


def test_that_it_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_and_biases, "find_spec", lambda _: None)
    weights_and_biases.WandbRun("/runs/large", {weights_and_biases.API_KEY_VARIABLE: KEY})
    assert (
        capsys.readouterr().err
        == "rosetta: WANDB_API_KEY is set, and wandb is not installed: pip install wandb\n"
    )
