"""What finetuning takes over from a checkpoint."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from rosetta.errors import UserError
from rosetta.t5x import pretrained

T5_LENGTHS = {"inputs": 512, "targets": 114}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("checkpoint_900", "checkpoint_1000", "checkpoint_1000.orbax-checkpoint-tmp-7", "logs"):
        (tmp_path / name).mkdir()
    return tmp_path


def _record(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    empty = {"batch_size": None, "targets_length": None, "scale_attn_logits": False}
    monkeypatch.setattr(pretrained, "_record", lambda _: types.SimpleNamespace(**(empty | fields)))


def test_a_folder_means_its_newest_whole_checkpoint(folder: Path) -> None:
    assert pretrained.path(str(folder)) == f"{folder}/checkpoint_1000"
    assert pretrained.path(f"{folder}/checkpoint_900/") == f"{folder}/checkpoint_900"


def test_no_checkpoint_to_start_from(tmp_path: Path) -> None:
    assert pretrained.path(None) is None
    with pytest.raises(UserError, match="no checkpoint_N in it"):
        pretrained.path(str(tmp_path))
    with pytest.raises(UserError, match="INITIAL_CHECKPOINT_PATH: there are no weights"):
        pretrained.step(None)


def test_finetuning_ends_its_own_steps_after_the_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pretrained.total_steps(str(folder), 50) == 1050
    assert pretrained.total_steps(str(folder), 50) == 1050
    assert capsys.readouterr().err.count("50 more end at 1050") == 1  # gin asks more than once
    with pytest.raises(UserError, match="FT_STEPS is 0"):
        pretrained.total_steps(str(folder), 0)


def test_the_loss_is_divided_as_published_where_the_checkpoint_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_record", lambda _: None)
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 233_472
    assert pretrained.loss_normalizing_factor(str(folder), 1024, {"inputs": 1024, "targets": 229}) == 234_496
    assert pretrained.loss_normalizing_factor(str(folder), 1024, {"inputs": 1024, "targets": 189}) == 193_536


def test_the_loss_is_divided_as_the_checkpoints_own_run_was_fed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _record(monkeypatch, batch_size=2304, targets_length=128)
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 294_912
    _record(monkeypatch, batch_size=2304)  # half a statement is none
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 233_472


@pytest.mark.parametrize("otherwise", [True, False])
def test_attention_is_scaled_as_the_checkpoint_was(folder: Path, monkeypatch: pytest.MonkeyPatch, otherwise: bool) -> None:
    assert pretrained.scale_attn_logits(None, otherwise=otherwise) is otherwise
    monkeypatch.setattr(pretrained, "_record", lambda _: None)
    assert pretrained.scale_attn_logits(str(folder), otherwise=otherwise) is False  # public weights
    _record(monkeypatch, scale_attn_logits=True)
    assert pretrained.scale_attn_logits(str(folder), otherwise=otherwise) is True
