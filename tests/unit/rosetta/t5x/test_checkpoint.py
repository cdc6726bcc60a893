"""What is refused of a checkpoint before anything is compiled, and what its record says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
utils = pytest.importorskip("t5x.utils", reason=REASON)

import numpy as np
import seqio
from flax.serialization import msgpack_serialize

from rosetta.t5x import checkpoint, checkpoint_arrays, checkpoint_manager
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run import checkpoint_record
from rosetta.t5x.run.model_config import T5Config
from tests.support import errors
from tests.support.train_states import Model

PLAIN, SCALED = T5Config(384), T5Config(384, scale_attn_logits=True)
SAVING = utils.CheckpointConfig(save=utils.SaveCheckpointConfig(period=2))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint_5 with no record."""
    folder = tmp_path_factory.mktemp("saved")
    saver = checkpoint_manager.Manager(
        str(folder),
        jax.eval_shape(lambda: Model().state(0)),
        PjitPartitioner(1, devices=jax.devices()[:1]),
        save_dtype="float32",
    )
    saver.save(Model().state(5))
    saver.close()
    return f"{folder}/checkpoint_5"


def _begin(
    model: Model,
    start: str | None,
    model_dir: Path | None = None,
    config: T5Config = PLAIN,
    **others: Any,
) -> None:
    """Come to where T5X would restore and compile."""
    checkpoint.Initializer(
        model.optimizer_def,
        model.get_initial_variables,
        {},
        PjitPartitioner(1, devices=jax.devices()[:1]),
        config=config,
        vocabulary=seqio.ByteVocabulary(100),
        checkpoint=start,
        model_dir=None if model_dir is None else str(model_dir),
        **others,
    )


def test_a_checkpoint_with_equal_shapes_is_accepted(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _begin(Model(), saved, tmp_path, optimizer=True, checkpoint_cfg=SAVING)
    assert "the weights and the state of the optimizer are taken over" in capsys.readouterr().err
    _begin(Model(), saved, tmp_path, optimizer=False, checkpoint_cfg=SAVING)
    assert "the optimizer starts anew" in capsys.readouterr().err


def test_an_array_of_another_shape_is_named_with_both_shapes(saved: str, tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_5", names=("dense/kernel", "(8, 4)", "(16, 4)")
    ):
        _begin(Model(rows=16), saved, tmp_path)


def test_a_missing_array_is_refused(saved: str, tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_5", names=("dense/weight", "(8, 4)")
    ):
        _begin(Model(name="weight"), saved, tmp_path)


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    _older(
        tmp_path / "checkpoint_9",
        {
            "state": {
                "step": np.int32(9),
                "param_states": {"dense": {"kernel": {"v_row": np.zeros(8, np.float32)}}},
            }
        },
    )
    with errors.expect_user_error(
        errors.DIFFERS, where="checkpoint_9", remedy="RESTORE_OPTIMIZER = False"
    ):
        _begin(Model(), f"{tmp_path}/checkpoint_9", tmp_path / "new", optimizer=True)
    _begin(Model(), f"{tmp_path}/checkpoint_9", tmp_path / "new", optimizer=False)


def _older(folder: Path, others: dict[str, Any]) -> None:
    """Write a checkpoint as T5X did before Orbax: a large array named by TensorStore's specification."""
    folder.mkdir()
    stored = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": "target.dense.kernel"},
        "metadata": {"shape": [8, 4], "dtype": "<f4"},
    }
    (folder / "checkpoint").write_bytes(
        msgpack_serialize(
            {"version": 3, "optimizer": {"target": {"dense": {"kernel": stored}}, **others}}
        )
    )


def test_shapes_of_t5xs_older_format(tmp_path: Path) -> None:
    _older(tmp_path / "checkpoint_9", {"state": {"step": np.int32(9)}})
    assert checkpoint_arrays.read_shapes(f"{tmp_path}/checkpoint_9") == {
        "target/dense/kernel": (8, 4),
        "state/step": (),
    }


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, where="checkpoint_9"):
        _begin(Model(), f"{tmp_path}/checkpoint_9", tmp_path / "new", SCALED)


def test_a_run_whose_record_is_missing_is_not_resumed(saved: str, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "checkpoint_5")
    _begin(Model(), None, tmp_path)  # a folder that another program wrote
    checkpoint_record.ensure_run_name(str(tmp_path))
    with errors.expect_user_error(errors.MISSING, where="checkpoint_5", names="rosetta.json"):
        _begin(Model(), None, tmp_path)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_damaged_checkpoint_is_refused_before_anything_is_compiled(
    saved: str, tmp_path: Path, resumes: bool
) -> None:
    shutil.copytree(saved, tmp_path / "run" / "checkpoint_5")
    (tmp_path / "run" / "checkpoint_5" / "state" / "manifest.ocdbt").write_bytes(b"")
    with errors.expect_user_error(
        errors.DAMAGED, where="checkpoint_5", names="checkpoint_5", remedy="another folder"
    ):
        _begin(
            Model(),
            *(
                (None, tmp_path / "run")
                if resumes
                else (f"{tmp_path}/run/checkpoint_5", tmp_path / "new")
            ),
        )


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_9").mkdir()
    with errors.expect_user_error(errors.DAMAGED, where="checkpoint_9", names="T5X"):
        _begin(Model(), f"{tmp_path}/checkpoint_9", tmp_path / "new")


def test_public_weights_are_not_scaled(saved: str, tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, where="checkpoint_5", names="scale_attn_logits"):
        _begin(Model(), saved, tmp_path, SCALED)


def test_the_record_decides_about_the_scale(saved: str, tmp_path: Path) -> None:
    told = Path(saved) / checkpoint_record.RECORD_FILE
    told.write_text(
        json.dumps({"schema": checkpoint_record.SCHEMA, "step": 5, "scale_attn_logits": True})
    )
    try:
        _begin(Model(), saved, tmp_path, SCALED)
        with errors.expect_user_error(errors.DIFFERS, value=False, names="scale_attn_logits"):
            _begin(Model(), saved, tmp_path, PLAIN)
        with errors.expect_user_error(errors.DIFFERS, value=False, names="scale_attn_logits"):
            _begin(Model(), None, Path(saved).parent, PLAIN)  # the same where a run goes on
    finally:
        told.unlink()


def test_another_vocabulary_is_refused(saved: str, tmp_path: Path) -> None:
    told = Path(saved) / checkpoint_record.RECORD_FILE
    told.write_text(
        json.dumps(
            {
                "schema": checkpoint_record.SCHEMA,
                "step": 5,
                "scale_attn_logits": False,
                "vocabulary": "another",
            }
        )
    )
    try:
        with errors.expect_user_error(errors.DIFFERS, where="checkpoint_5", remedy="VOCAB"):
            _begin(Model(), saved, tmp_path)
        with errors.expect_user_error(errors.DIFFERS, where="checkpoint_5", remedy="VOCAB"):
            _begin(Model(), None, Path(saved).parent)  # the same where a run goes on
    finally:
        told.unlink()


def test_a_relative_folder_is_refused_before_training(saved: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="out", remedy="/out"):
        _begin(Model(), saved, Path("out"), checkpoint_cfg=SAVING)


def test_records_of_unfinished_saves_are_deleted_at_the_start(saved: str, tmp_path: Path) -> None:
    checkpoint_record.write_record(
        str(tmp_path), checkpoint_record.Record(step=9, scale_attn_logits=True)
    )
    _begin(Model(), saved, tmp_path, checkpoint_cfg=SAVING)
    assert checkpoint_record.read_record(f"{tmp_path}/checkpoint_9") is None


def _recorded(folder: Path, start: str | None) -> checkpoint_record.Record:
    lengths = {"inputs": 32, "targets": 16}
    state = Model().state(6).state_dict()
    kept, _ = checkpoint.on_save(
        state,
        {},
        model_dir=str(folder),
        config=SCALED,
        batch_size=64,
        lengths=lengths,
        vocabulary=seqio.ByteVocabulary(100),
        start=start,
    )
    assert kept is state
    found = checkpoint_record.read_record(f"{folder}/checkpoint_6")
    assert found is not None
    return found


def test_what_a_record_holds(tmp_path: Path) -> None:
    found = _recorded(tmp_path, None)
    assert (found.step, found.scale_attn_logits, found.batch_size, found.targets_length) == (
        6,
        True,
        64,
        16,
    )
    assert found.run == checkpoint_record.ensure_run_name(str(tmp_path))
    assert found.config["fuse_qkv"] == "False"
    assert found.start == ""
    assert found.vocabulary
    assert {"jax", "flax"} <= set(found.versions)


def test_finetuning_copies_the_batch_of_pretraining(saved: str, tmp_path: Path) -> None:
    unknown = _recorded(tmp_path, saved)
    assert (unknown.batch_size, unknown.targets_length) == (None, None)  # public weights do not say
    assert unknown.start == saved
    told = Path(saved) / checkpoint_record.RECORD_FILE
    told.write_text(
        json.dumps(
            {
                "schema": checkpoint_record.SCHEMA,
                "step": 5,
                "scale_attn_logits": True,
                "batch_size": 2048,
                "targets_length": 114,
            }
        )
    )
    try:
        found = _recorded(tmp_path, saved)
        assert (found.batch_size, found.targets_length) == (2048, 114)
    finally:
        told.unlink()
