"""What finetuning takes over from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.t5x import pretrained
from rosetta.t5x.run import checkpoint_record
from tests.support import errors

T5_LENGTHS = {"inputs": 512, "targets": 114}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "checkpoint_900",
        "checkpoint_1000",
        "checkpoint_1000.orbax-checkpoint-tmp-7",
        "logs",
    ):
        (tmp_path / name).mkdir()
    return tmp_path


def _record(folder: Path, **fields: object) -> None:
    """Have the folder's newest checkpoint say this of itself."""
    checkpoint_record.write_record(
        str(folder),
        checkpoint_record.Record(**{"step": 1000, "scale_attn_logits": False, **fields}),  # type: ignore[arg-type]
    )


def test_a_folder_means_its_newest_whole_checkpoint(folder: Path) -> None:
    assert pretrained.start(str(folder)) == f"{folder}/checkpoint_1000"
    assert pretrained.start(f"{folder}/checkpoint_900/") == f"{folder}/checkpoint_900"


def test_a_missing_start_checkpoint_is_refused(tmp_path: Path) -> None:
    assert pretrained.start(None) is None
    with errors.expect_user_error(errors.MISSING, where=tmp_path, names="checkpoint_N"):
        pretrained.start(str(tmp_path))
    with errors.expect_user_error(errors.MISSING, where="none"):
        pretrained.start(str(tmp_path / "none"))
    with errors.expect_user_error(errors.MISSING, where="INITIAL_CHECKPOINT_PATH"):
        pretrained.step(None)


def test_checkpoints_saved_meanwhile_do_not_change_the_start(folder: Path, tmp_path: Path) -> None:
    began = pretrained.start(str(folder), str(tmp_path / "ft"))
    (folder / "checkpoint_2000").mkdir()
    assert (
        pretrained.start(str(folder), str(tmp_path / "ft")) == began == f"{folder}/checkpoint_1000"
    )


@pytest.fixture
def finetuned(folder: Path, tmp_path: Path) -> str:
    """A folder of finetuning from checkpoint_1000, which was stopped; since then pretraining has gone on."""
    made = tmp_path / "ft"
    (made / "checkpoint_1200").mkdir(parents=True)
    checkpoint_record.write_record(
        str(made),
        checkpoint_record.Record(
            step=1200, scale_attn_logits=False, start=f"{folder}/checkpoint_1000"
        ),
    )
    (folder / "checkpoint_2000").mkdir()
    return str(made)


def test_a_run_that_is_started_again_has_the_same_start(
    folder: Path, finetuned: str, tmp_path: Path
) -> None:
    assert pretrained.start(str(folder), finetuned) == f"{folder}/checkpoint_1000"
    assert pretrained.start(f"{folder}/checkpoint_1000/", finetuned) == f"{folder}/checkpoint_1000"
    (tmp_path / "moved" / "checkpoint_1000").mkdir(parents=True)
    assert pretrained.start(f"{tmp_path}/moved", finetuned) == f"{tmp_path}/moved/checkpoint_1000"
    assert pretrained.start(None, finetuned) is None


def test_another_or_a_missing_start_is_refused(folder: Path, finetuned: str) -> None:
    with errors.expect_user_error(
        errors.CONFLICT, where="checkpoint_2000", names=(finetuned, f"{folder}/checkpoint_1000")
    ):
        pretrained.start(f"{folder}/checkpoint_2000", finetuned)
    (folder / "checkpoint_1000").rmdir()
    with errors.expect_user_error(errors.MISSING, where="checkpoint_1000"):
        pretrained.start(str(folder), finetuned)


def test_finetuning_ends_its_own_steps_after_the_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretrained.total_steps(str(folder), 50) == 1050
    assert pretrained.total_steps(str(folder), 50) == 1050
    assert capsys.readouterr().err.count("50 more end at 1050") == 1  # gin asks more than once
    with errors.expect_user_error(errors.INVALID, where="finetuning", value=0, names="FT_STEPS"):
        pretrained.total_steps(str(folder), 0)


def test_the_loss_is_divided_as_published_where_the_checkpoint_says_nothing(folder: Path) -> None:
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 233_472
    assert (
        pretrained.loss_normalizing_factor(str(folder), 1024, {"inputs": 1024, "targets": 229})
        == 234_496
    )
    assert (
        pretrained.loss_normalizing_factor(str(folder), 1024, {"inputs": 1024, "targets": 189})
        == 193_536
    )


@pytest.mark.parametrize("mark", ["_CHECKPOINT_METADATA", "state/_METADATA", "_METADATA"])
def test_a_checkpoint_in_orbaxs_format_without_a_record_is_not_taken_for_public_weights(
    folder: Path, mark: str
) -> None:
    file = folder / "checkpoint_1000" / mark
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}")
    with errors.expect_user_error(errors.MISSING, where="checkpoint_1000", names="rosetta.json"):
        pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS)
    with errors.expect_user_error(
        errors.MISSING, where="checkpoint_1000", names="rosetta.json"
    ) as raised:
        pretrained.scale_attn_logits(str(folder), otherwise=True)
    written = raised.value.do[raised.value.do.index("{") :]  # what the line says to write
    (folder / "checkpoint_1000" / checkpoint_record.RECORD_FILE).write_text(written)
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 128 * 114
    assert pretrained.scale_attn_logits(str(folder), otherwise=False)


def test_the_loss_is_divided_by_the_batch_of_the_checkpoints_record(folder: Path) -> None:
    _record(folder, batch_size=2304, targets_length=128)
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 294_912
    _record(folder, batch_size=2304)  # half a statement is none
    assert pretrained.loss_normalizing_factor(str(folder), 2048, T5_LENGTHS) == 233_472


@pytest.mark.parametrize("otherwise", [True, False])
def test_attention_is_scaled_as_the_checkpoint_was(folder: Path, otherwise: bool) -> None:
    assert pretrained.scale_attn_logits(None, otherwise=otherwise) is otherwise
    assert pretrained.scale_attn_logits(str(folder), otherwise=otherwise) is False  # public weights
    _record(folder, scale_attn_logits=True)
    assert pretrained.scale_attn_logits(str(folder), otherwise=otherwise) is True
