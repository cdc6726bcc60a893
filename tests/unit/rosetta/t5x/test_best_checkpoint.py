"""The best checkpoint of a run: its metric, what is kept of it, and when the run stops."""

from __future__ import annotations

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
        ("exactly", errors.UNKNOWN, f"{TASK}/exact"),
        ("other/exact", errors.UNKNOWN, f"{TASK}/token_accuracy"),
        ("texts", errors.UNKNOWN, f"{TASK}/f1"),
    ],
)
def test_an_unknown_metric_is_refused_before_training(
    metric: str, kind: str, remedy: str, tmp_path: Path
) -> None:
    task = make_task(TASK, measure)
    with errors.expect_user_error(kind, where=f"KEEP_BEST={metric}", value=metric, remedy=remedy):
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
    assert "checkpoint_20" in run_results._lines["best"]
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
    tracker: Any = best_checkpoint.make_tracker("exact", None, str(tmp_path))
    assert tracker.needs_answers
    assert not best_checkpoint.measures_concurrently(tracker)
    (action,) = best_checkpoint.make_actions(tracker)["INFER_EVAL"]
    tracker.record(10, TASK, {"f1": 0.5})
    with errors.expect_user_error(errors.UNKNOWN, value="exact", remedy=f"{TASK}/f1"):
        action.run(None, {})
    tracker.record(20, TASK, {"exact": 0.5})
    assert not action.run(None, {})


@pytest.mark.parametrize(("keep", "kept"), [(1, [2, 5]), (2, [2, 4, 5])])
def test_the_best_and_the_newest_checkpoints_are_kept(
    keep: int, kept: list[int], tmp_path: Path
) -> None:
    tracker: Any = best_checkpoint.make_tracker("loss", None, str(tmp_path))
    model = Model()
    run = checkpoint_record.ensure_run_name(str(tmp_path))
    saver = checkpoint_manager.Manager(
        str(tmp_path),
        jax.eval_shape(lambda: model.state(0)),
        PjitPartitioner(1, devices=jax.devices()[:1]),
        save_dtype="float32",
        keep=keep,
    )
    for step, loss in enumerate((4.0, 3.0, 1.0, 2.0, 3.0, 2.0)):
        record = checkpoint_record.Record(step=step, scale_attn_logits=False, run=run)
        checkpoint_record.write_record(str(tmp_path), record)
        saver.save(model.state(step))
        evaluate(tracker, step, loss)  # T5X evaluates a step after it has saved it
    saver.close()
    assert run_folders.list_checkpoint_steps(str(tmp_path)) == kept


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
