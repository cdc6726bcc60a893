"""The best checkpoint of a run: its metric, what is kept of it, and when the run stops."""

from __future__ import annotations

import errno
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "t5x.utils", "seqio")

import jax
import seqio
from t5x import checkpoints, utils

from rosetta.core import run_folders
from rosetta.health import run_results
from rosetta.t5x import best_checkpoint, checkpoint_manager
from rosetta.t5x.partitioning import PjitPartitioner
from rosetta.t5x.run import checkpoint_record
from tests.support.train_states import Model

TASK = "best_checkpoint_test"


def measure(targets: Any, predictions: Any) -> dict[str, Any]:
    return {"exact": float(targets == predictions), "f1": 0.5, "texts": seqio.metrics.Text("a")}


def measure_pairs(targets: Any, predictions: Any) -> dict[str, Any]:
    return {"score": targets["a"] / len(predictions)}  # takes no list


@pytest.fixture(autouse=True)
def one_run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Forget the run of another test, in this process."""
    monkeypatch.setattr(best_checkpoint, "_tracker", None)
    best_checkpoint.make_tracker.cache_clear()
    yield
    run_results._lines.clear()


def read_nothing(split: str, shuffle_files: bool = False) -> None:
    """The data of a task that is never read."""


def make_task(name: str, *metrics: Any) -> Any:
    if name not in seqio.TaskRegistry.names():
        feature = seqio.Feature(seqio.ByteVocabulary())
        source = seqio.FunctionDataSource(read_nothing, splits=["train"])
        seqio.TaskRegistry.add(
            name,
            source=source,
            preprocessors=[],
            output_features={"inputs": feature, "targets": feature},
            metric_fns=list(metrics),
        )
    return seqio.TaskRegistry.get(name)


def test_the_metrics_of_a_task_are_known_before_training() -> None:
    task = make_task(TASK, measure)
    assert best_checkpoint.list_metrics(task, answers=False) == [
        f"{TASK}/loss",
        f"{TASK}/token_accuracy",
    ]
    assert best_checkpoint.list_metrics(TASK, answers=True) == [
        f"{TASK}/{name}" for name in ("loss", "token_accuracy", "exact", "f1")
    ]
    assert best_checkpoint.list_metrics(make_task("odd_test", measure_pairs), answers=True) is None
    assert best_checkpoint.list_metrics(None, answers=True) is None


@pytest.mark.parametrize(
    ("metric", "kind", "remedy"),
    [
        ("exactly:max", errors.UNKNOWN, f"{TASK}/exact"),
        ("other/exact:max", errors.UNKNOWN, f"{TASK}/token_accuracy"),
        ("texts:max", errors.UNKNOWN, f"{TASK}/f1"),
    ],
)
def test_an_unknown_metric_is_refused_before_training(
    metric: str, kind: str, remedy: str, tmp_path: Path
) -> None:
    task = make_task(TASK, measure)
    name = metric.removesuffix(":max")
    with errors.expect_user_error(kind, where=f"KEEP_BEST={name}", value=name, remedy=remedy):
        best_checkpoint.make_tracker(metric, None, str(tmp_path), None, task, answers=True)
    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_two_tasks_has_to_name_one() -> None:
    known = ["one/loss", "two/loss"]
    best_checkpoint.check_metric("two/loss", known)
    with errors.expect_user_error(errors.INVALID, value="loss", remedy=("one/loss", "two/loss")):
        best_checkpoint.check_metric("loss", known)


def test_without_settings_nothing_is_tracked(tmp_path: Path) -> None:
    tracker = best_checkpoint.make_tracker(None, None, str(tmp_path))
    assert tracker is None
    assert best_checkpoint.get_tracker() is None
    assert best_checkpoint.make_actions(tracker) == {}
    assert best_checkpoint.measures_concurrently(tracker)
    assert not best_checkpoint.is_evaluation_overdue(tracker, str(tmp_path), 10, 100)
    assert best_checkpoint.broadcast_best_step() is None
    with errors.expect_user_error(errors.INVALID, where="EARLY_STOP_PATIENCE", value=0):
        best_checkpoint.make_tracker(None, 0, str(tmp_path))


def read_reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def evaluate(tracker: Any, step: int, loss: float) -> bool:
    tracker.record(step, TASK, {"loss": loss, "token_accuracy": 0.5})
    (action,) = best_checkpoint.make_actions(tracker)["TRAIN_EVAL"]
    return bool(action.run(None, {}))


def test_a_run_stops_when_its_patience_ends(tmp_path: Path) -> None:
    tracker: Any = best_checkpoint.make_tracker("loss", 2, str(tmp_path))
    stops = [evaluate(tracker, step, loss) for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5))]
    assert stops == [False, False, False]
    assert evaluate(tracker, 40, 2.0)  # no better than step 20
    *_, last = read_reports(tmp_path)
    assert last["step"] == 40
    assert "step 20" in last["stopped"]
    bests = [report for report in read_reports(tmp_path) if "best" in report]
    assert [report["best"]["step"] for report in bests] == [10, 20, 20, 20]
    assert [report["evaluations_since_best"] for report in bests] == [0, 0, 1, 2]
    assert "step 20" in run_results._lines["best"]
    assert "checkpoint_" not in run_results._lines["best"]  # the test saves none
    assert "stopped early" in run_results._lines


def test_a_killed_run_goes_on_counting(tmp_path: Path) -> None:
    tracker: Any = best_checkpoint.make_tracker("loss", 3, str(tmp_path), "old/checkpoint_5")
    for step, loss in ((15, 2.0), (25, 2.5), (35, 2.6)):
        evaluate(tracker, step, loss)
    for step in (15, 25):  # the checkpoint of step 35 was not complete when the run was killed
        (tmp_path / f"checkpoint_{step}").mkdir()
    best_checkpoint.make_tracker.cache_clear()
    resumed: Any = best_checkpoint.make_tracker("loss", 3, str(tmp_path), "old/checkpoint_5")
    assert best_checkpoint.broadcast_best_step() == 15
    assert not resumed.has_to_stop
    assert not best_checkpoint.is_evaluation_overdue(resumed, str(tmp_path), 10, 100)
    assert not evaluate(resumed, 35, 2.6)
    assert evaluate(resumed, 45, 2.6)
    (tmp_path / "checkpoint_45").mkdir()
    best_checkpoint.make_tracker.cache_clear()
    ended: Any = best_checkpoint.make_tracker("loss", 3, str(tmp_path), "old/checkpoint_5")
    assert ended.has_to_stop
    (tmp_path / "checkpoint_55").mkdir()  # killed before its evaluation
    assert best_checkpoint.is_evaluation_overdue(ended, str(tmp_path), 10, 100)


def test_an_evaluation_without_the_metric_is_refused(tmp_path: Path) -> None:
    tracker: Any = best_checkpoint.make_tracker("exact:max", None, str(tmp_path))
    assert tracker.needs_answers
    assert not best_checkpoint.measures_concurrently(tracker)
    (action,) = best_checkpoint.make_actions(tracker)["INFER_EVAL"]
    tracker.record(10, TASK, {"f1": 0.5})
    with errors.expect_user_error(errors.UNKNOWN, value="exact", remedy=f"{TASK}/f1"):
        action.run(None, {})
    tracker.record(20, TASK, {"exact": 0.5})
    assert not action.run(None, {})


def make_manager(folder: Path, keep: int | None) -> Any:
    """A manager of T5X as a run begins or resumes with it."""
    model = Model()
    return checkpoint_manager.Manager(
        str(folder),
        jax.eval_shape(lambda: model.state(0)),
        PjitPartitioner(1, devices=jax.devices()[:1]),
        save_dtype="float32",
        keep=keep,
    )


def train(tracker: Any, manager: Any, losses: dict[int, float]) -> list[int]:
    """Save and evaluate steps; return those with a checkpoint in the end."""
    folder = str(manager.directory)
    run = checkpoint_record.ensure_run_name(folder)
    for step, loss in losses.items():
        record = checkpoint_record.Record(step=step, scale_attn_logits=False, run=run)
        checkpoint_record.write_record(folder, record)
        manager.save(Model().state(step))
        if tracker:
            evaluate(tracker, step, loss)  # T5X evaluates a step after it has saved it
    manager.close()
    return run_folders.list_checkpoint_steps(folder)


LOSSES = dict(enumerate((4.0, 3.0, 1.0, 2.0, 3.0, 2.0)))


@pytest.mark.parametrize(("keep", "kept"), [(1, [2, 5]), (2, [2, 4, 5])])
def test_the_best_and_the_newest_checkpoints_are_kept(
    keep: int, kept: list[int], tmp_path: Path
) -> None:
    tracker: Any = best_checkpoint.make_tracker("loss", None, str(tmp_path))
    assert train(tracker, make_manager(tmp_path, keep), LOSSES) == kept
    assert run_results._lines["best"].endswith(f"{tmp_path}/checkpoint_2")


def test_the_best_checkpoint_that_exists_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the best step: the best one of the others stays."""
    tracker: Any = best_checkpoint.make_tracker("loss", None, str(tmp_path))
    steps = iter(LOSSES)

    def fail_at_step_2(_folder: str, _size: int) -> None:
        if next(steps) == 2:
            raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(checkpoint_record, "check_free_space", fail_at_step_2)
    assert train(tracker, make_manager(tmp_path, 1), {**LOSSES, 1: 1.5}) == [1, 5]
    line = run_results._lines["best"]
    assert "step 2" in line
    assert line.endswith(f"{tmp_path}/checkpoint_1")


def resume(folder: Path, keep_best: str | None, **more: bool) -> Any:
    """The tracker of a run that is started again."""
    best_checkpoint._tracker = None
    best_checkpoint.make_tracker.cache_clear()
    return best_checkpoint.make_tracker(keep_best, None, str(folder), **more)


def test_the_best_by_another_metric_stays_until_there_is_a_value(tmp_path: Path) -> None:
    tracker = resume(tmp_path, "loss")
    assert train(tracker, make_manager(tmp_path, 1), LOSSES) == [2, 5]
    tracker = resume(tmp_path, "token_accuracy")
    assert best_checkpoint.broadcast_best_step() == 2
    assert train(tracker, make_manager(tmp_path, 1), {6: 9.0}) == [2, 6]
    tracker = resume(tmp_path, "loss")  # a switch back still knows step 2
    assert train(tracker, make_manager(tmp_path, 1), {7: 9.0}) == [2, 7]


def test_checkpoints_from_before_keep_best_stay(tmp_path: Path) -> None:
    assert train(None, make_manager(tmp_path, None), {0: 9.0, 1: 9.0}) == [0, 1]
    for steps, kept in (((2, 3, 4), [0, 1, 2, 4]), ((5, 6), [0, 1, 2, 6])):
        tracker = resume(tmp_path, "loss", keeps_older=True)
        losses = {step: float(step) for step in steps}
        assert train(tracker, make_manager(tmp_path, 1), losses) == kept
    assert resume(tmp_path, None) is None  # a run without KEEP_BEST, which keeps all again
    assert train(None, make_manager(tmp_path, None), {7: 9.0, 8: 9.0}) == [0, 1, 2, 6, 7, 8]
    tracker = resume(tmp_path, "loss", keeps_older=True)
    assert train(tracker, make_manager(tmp_path, 1), {9: 9.0, 10: 9.0}) == [0, 1, 2, 6, 7, 8, 10]


@pytest.mark.parametrize("wrapped", [False, True])
def test_upstream_s_best_checkpointer_is_refused(wrapped: bool, tmp_path: Path) -> None:
    checkpoint_manager.install()
    cls: Any = checkpoints.SaveBestCheckpointer
    if wrapped:
        cls = functools.partial(cls, metric_name_to_monitor="train/accuracy")
    with errors.expect_user_error(errors.UNSUPPORTED, remedy="KEEP_BEST"):
        utils.create_orbax_checkpoint_manager(
            save_cfg=utils.SaveCheckpointConfig(period=2, checkpointer_cls=cls),
            train_state=jax.eval_shape(lambda: Model().state(0)),
            partitioner=PjitPartitioner(1, devices=jax.devices()[:1]),
            model_dir=str(tmp_path),
        )
