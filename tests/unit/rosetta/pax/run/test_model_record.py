"""The record of a model beside its checkpoints."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

from rosetta.pax.run import model_record
from tests.support import errors


class _Policy(enum.Enum):
    NOTHING = "save_nothing"


class _Experiment:
    DATA = "text:a"
    NUM_LAYERS = 12
    ROTARY_FRACTION = 0.25
    ACTIVATION_CLS = int
    CHECKPOINT_POLICY = None
    ICI_MESH_SHAPE = (8, 1, 1)
    ROPE_SCALING = None


def test_only_what_differs_and_belongs_to_the_model_is_kept() -> None:
    experiment = _Experiment()
    experiment.DATA, experiment.ICI_MESH_SHAPE = "text:b", (1, 1, 1)
    experiment.NUM_LAYERS = 12
    experiment.ROTARY_FRACTION = None  # type: ignore[assignment]
    experiment.ACTIVATION_CLS = float  # type: ignore[assignment]
    experiment.CHECKPOINT_POLICY = _Policy.NOTHING  # type: ignore[assignment]
    experiment.ROPE_SCALING = (8, 1)  # type: ignore[assignment]
    experiment.note = "x"  # type: ignore[attr-defined]
    experiment.HOOK = print  # type: ignore[attr-defined]
    assert model_record.collect_hyper_parameters(experiment) == {
        "ROTARY_FRACTION": None,
        "ACTIVATION_CLS": "float",
        "CHECKPOINT_POLICY": "save_nothing",
        "ROPE_SCALING": [8, 1],
    }


def test_a_record_reads_back(tmp_path: Path) -> None:
    assert model_record.read_record(str(tmp_path)) is None
    record = model_record.ModelRecord("a.B", {"NUM_LAYERS": 2}, "/v.model", 0)
    model_record.write_record(str(tmp_path), record)
    assert model_record.read_record(str(tmp_path)) == record


@pytest.mark.parametrize("text", ["", "[]", '{"experiment": 1}', '{"experiment": 1, "x": 2}'])
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / model_record.FILE).write_text(text)
    with errors.expect_user_error(errors.DAMAGED, where=Path(model_record.FILE).name):
        model_record.read_record(str(tmp_path))
