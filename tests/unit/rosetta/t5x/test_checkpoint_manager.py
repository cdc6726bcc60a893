"""Saves go on beside the training, delete only what the run made, and overwrite nothing; what a checkpoint lacks is made anew."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

REASON = "NOT CHECKED: needs the packages of a baked environment"
jax = pytest.importorskip("jax", reason=REASON)
utils = pytest.importorskip("t5x.utils", reason=REASON)

import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from t5x import checkpoints

from rosetta.core import run_folders
from rosetta.t5x import checkpoint, checkpoint_manager
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run import checkpoint_record
from tests.support import errors
from tests.support.train_states import Model


def _manager(folder: Path, model: Model, **options: Any) -> checkpoint_manager.Manager:
    shape = jax.eval_shape(lambda: model.state(0))
    return checkpoint_manager.Manager(
        str(folder),
        shape,
        PjitPartitioner(1, devices=jax.devices()[:1]),
        **({"save_dtype": "float32"} | options),
    )


def _save(
    folder: Path, model: Model, step: int, *, run: str | None, keep: int | None = None
) -> None:
    saver = _manager(folder, model, keep=keep)
    if run is not None:
        checkpoint_record.write_record(
            str(folder), checkpoint_record.Record(step=step, scale_attn_logits=False, run=run)
        )
    saver.save(model.state(step))
    saver.close()


def _same(left: Any, right: Any) -> bool:
    return all(
        np.array_equal(one, other)
        for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.parametrize("with_fp8", [False, True])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_saved_state_is_restored(tmp_path: Path, with_fp8: bool, dtype: str | None) -> None:
    model = Model(with_fp8=with_fp8)
    _save(tmp_path, model, 5, run=None)
    found = _manager(tmp_path, model, restore_dtype=dtype).restore(path=f"{tmp_path}/checkpoint_5")
    before = model.state(5)
    assert _same(found.state_dict(), before.state_dict())
    assert [leaf.dtype for leaf in jax.tree.leaves(found)] == [
        leaf.dtype for leaf in jax.tree.leaves(before)
    ]


def test_only_parameters_are_restored_in_another_type(tmp_path: Path) -> None:
    """Upstream makes the step a bfloat16 too, which has no 1001."""
    _save(tmp_path, Model(), 1001, run=None)
    found = _manager(tmp_path, Model(), restore_dtype="bfloat16").restore(
        path=f"{tmp_path}/checkpoint_1001"
    )
    assert found.params["dense"]["kernel"].dtype == "bfloat16"
    assert (found.step.dtype, int(found.step)) == ("int32", 1001)


def test_a_step_saved_as_a_float_is_restored_as_an_integer(tmp_path: Path) -> None:
    """As upstream saves it in a run that was resumed."""
    saver = _manager(tmp_path, Model())
    saver.save(Model().state(5).replace_step(jax.numpy.float32(5)))
    saver.close()
    found = _manager(tmp_path, Model()).restore(path=f"{tmp_path}/checkpoint_5")
    assert (found.step.dtype, int(found.step)) == ("int32", 5)


def test_a_checkpoint_has_its_record_before_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checkpoint_record, "distribute_records", lambda *_, **__: None
    )  # a run that is killed never comes to it
    _save(tmp_path, Model(), 5, run="r")
    assert (tmp_path / "checkpoint_5" / checkpoint_record.RECORD_FILE).is_file()
    (tmp_path / "checkpoint_5").rename(tmp_path / "copy")
    (tmp_path / "new").mkdir()
    (tmp_path / "copy").rename(tmp_path / "new" / "checkpoint_5")
    found = checkpoint_record.read_record(f"{tmp_path}/new/checkpoint_5")
    assert found is not None
    assert found.run == "r"


@pytest.mark.parametrize(("folder", "advice"), [("run", ": mv "), ("elsewhere", "instead")])
def test_a_damaged_checkpoint_is_one_line(tmp_path: Path, folder: str, advice: str) -> None:
    for step in (4, 5):
        _save(tmp_path / "run", Model(), step, run="r")
    for file in (tmp_path / "run" / "checkpoint_5").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:10])
    names = ("checkpoint_5", "checkpoint_4")
    with errors.expect_user_error(errors.DAMAGED, names=names) as raised:
        _manager(tmp_path / folder, Model()).restore(path=f"{tmp_path}/run/checkpoint_5")
    assert raised.value.where.startswith(f"{tmp_path}/run/checkpoint_5/state/d/")
    assert advice in raised.value.do


def test_training_goes_on_while_a_save_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    finalize = ocp.CheckpointManager._finalize

    def held(*args: Any, **kwargs: Any) -> Any:
        assert go_on.wait(20)
        return finalize(*args, **kwargs)

    monkeypatch.setattr(ocp.CheckpointManager, "_finalize", held)
    saver = _manager(tmp_path, Model())
    try:
        saver.save(Model().state(5))
        saver.wait_until_finished()  # as T5X does after each save: `held` would not let it end
        assert not go_on.is_set()
        try:
            raise KeyError  # as where T5X saves because the process is about to be ended
        except KeyError:
            threading.Timer(0.2, go_on.set).start()
            saver.wait_until_finished()
            waited = go_on.is_set()
        assert waited
        assert run_folders.list_checkpoint_steps(str(tmp_path)) == [5]
    finally:
        go_on.set()
        saver.close()


def test_keep_deletes_only_checkpoints_of_this_run(tmp_path: Path) -> None:
    own = checkpoint_record.ensure_run_name(str(tmp_path))
    model = Model()
    for step, run in ((1, None), (2, "another run"), (3, own), (4, own)):
        _save(tmp_path, model, step, run=run)
    _save(tmp_path, model, 5, run=own, keep=1)
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == [1, 2, 5]


def test_an_existing_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    _save(tmp_path, Model(), 5, run=None)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoint_5").rglob("*")}
    saver = _manager(tmp_path, Model())
    assert not saver.save(Model().state(5), [lambda *_: pytest.fail("it was about to be written")])
    saver.close()
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoint_5").rglob("*")
    } == before


def test_evaluation_leaves_a_save_in_progress_alone(tmp_path: Path) -> None:
    _save(tmp_path, Model(), 5, run=None)
    halfway = tmp_path / "checkpoint_6.orbax-checkpoint-tmp"
    halfway.mkdir()
    reader = _manager(tmp_path, Model(), save_dtype=None, period=None)
    reader.restore(path=f"{tmp_path}/checkpoint_5")
    reader.close()
    assert halfway.exists()


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saver = _manager(tmp_path, Model())
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    assert not saver.save(Model().state(5))
    assert "0.0 MB are free; " in capsys.readouterr().err
    with errors.expect_user_error(errors.FAILED, value=10):
        saver.save(Model().state(10))
    with errors.expect_user_error(errors.FAILED, value=10):
        saver.close()
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("free", "other", "is_skipped"), [(10**18, 1, True), (10**18, 2, False), (10, 2, False)]
)
def test_only_a_full_disk_of_another_process_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, other: int, is_skipped: bool
) -> None:
    saver = _manager(tmp_path, Model())
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        multihost_utils,
        "process_allgather",
        lambda own: np.concatenate([own, [other]]),
    )
    if is_skipped:
        assert not saver.save(Model().state(5))
    else:
        with errors.expect_user_error(errors.FAILED, where=tmp_path):
            saver.save(Model().state(5))
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == []


def test_a_state_is_checked_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    asked = SimpleNamespace(
        before_checkpoint=lambda step, finite: seen.append((step, finite())), saves=None
    )
    monkeypatch.setattr("rosetta.health.supervision.get_supervisor", lambda: asked)
    saver = _manager(tmp_path, Model())
    saver.save(Model().state(5))
    state = Model().state(10)
    saver.save(
        state.replace_params(
            jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(np.nan), state.params)
        )
    )
    saver.close()
    assert seen == [(5, True), (10, False)]


def test_size_counts_parameters_as_they_are_saved() -> None:
    state = jax.eval_shape(lambda: Model().state(0)).state_dict()
    moments = 2 * 8 * 4 * 4
    counters = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(state["state"]) if not leaf.ndim)
    assert (
        checkpoint_manager.compute_checkpoint_size(state, "float32")
        == 8 * 4 * 4 + moments + counters
    )
    assert (
        checkpoint_manager.compute_checkpoint_size(state, "bfloat16")
        == 8 * 4 * 2 + moments + counters
    )


def test_an_optimizer_state_that_is_not_restored_starts_anew(tmp_path: Path) -> None:
    model = Model()
    _save(tmp_path, model, 5, run=None)
    found = _manager(tmp_path, model).restore(
        path=f"{tmp_path}/checkpoint_5",
        state_transformation_fns=checkpoint.transformations(optimizer=False),
    )
    assert int(found.step) == 5
    assert _same(found.params, model.state(5).params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.param_states))


def test_missing_fp8_state_starts_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path, Model(), 5, run=None)
    found = _manager(tmp_path, Model(with_fp8=True)).restore(path=f"{tmp_path}/checkpoint_5")
    (state,) = found.flax_mutables.values()
    assert np.array_equal(state["dense"]["kernel_scale"], [1.0])
    assert not np.any(state["dense"]["kernel_amax_history"])
    assert _same(found.param_states, Model().state(5).param_states)
    assert "no FP8 state: FP8 starts with its initial state" in capsys.readouterr().err


def test_fp8_state_is_not_used_in_a_run_without_fp8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path, Model(with_fp8=True), 5, run=None)
    found = _manager(tmp_path, Model()).restore(path=f"{tmp_path}/checkpoint_5")
    assert not found.flax_mutables
    assert _same(found.state_dict(), Model().state(5).state_dict())
    assert "FP8 state is not used" in capsys.readouterr().err


def test_t5x_uses_the_manager_for_a_resumed_run_and_keeps_a_users_own(tmp_path: Path) -> None:
    checkpoint_manager.install()
    checkpoint_manager.install()
    shape = jax.eval_shape(lambda: Model().state(0))
    common = {
        "train_state": shape,
        "partitioner": PjitPartitioner(1, devices=jax.devices()[:1]),
        "model_dir": str(tmp_path),
    }
    resumed = utils.RestoreCheckpointConfig(path=str(tmp_path))
    made = utils.create_orbax_checkpoint_manager(
        save_cfg=utils.SaveCheckpointConfig(period=2), restore_cfg=resumed, **common
    )
    assert isinstance(made, checkpoint_manager.Manager)
    made.close()

    class Own(checkpoints.OrbaxCheckpointManagerInterface):
        pass

    theirs = utils.create_orbax_checkpoint_manager(
        save_cfg=utils.SaveCheckpointConfig(period=2, checkpoint_manager_cls=Own), **common
    )
    assert type(theirs) is Own
    theirs.close()
