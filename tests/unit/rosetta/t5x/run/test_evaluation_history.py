"""The best step of a run, its patience, and what a resumed run remembers of both."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rosetta.t5x.run import evaluation_history
from rosetta.t5x.run.evaluation_history import EvaluationHistory, Metric
from tests.support import errors

LOSS, ACCURACY = Metric("loss", "min"), Metric("accuracy", "max")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss", LOSS),
        ("accuracy", ACCURACY),
        ("task_a/loss", Metric("task_a/loss", "min")),
        ("loss/f1", Metric("loss/f1", "max")),  # the task's name says nothing
        ("word_error_rate", Metric("word_error_rate", "min")),
        ("task/bleu", Metric("task/bleu", "max")),
        ("trivia_qa/wer", Metric("trivia_qa/wer", "min")),
        ("bits_per_byte:min", Metric("bits_per_byte", "min")),
        ("accuracy:min", Metric("accuracy", "min")),
        (" perplexity:max ", Metric("perplexity", "max")),
    ],
)
def test_a_metric_knows_what_is_better(text: str, expected: Metric) -> None:
    assert evaluation_history.parse_metric(text) == expected


@pytest.mark.parametrize("text", ["", ":min", "loss:least", "loss:"])
def test_other_metrics_are_refused(text: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="KEEP_BEST", value=text):
        evaluation_history.parse_metric(text)


@pytest.mark.parametrize("name", ["bits_per_byte", "task/exactness", "accuracy_loss", "closs"])
def test_a_name_that_does_not_say_what_is_better_needs_a_mode(name: str) -> None:
    with errors.expect_user_error(
        errors.INVALID, where=f"KEEP_BEST={name}", value=name, remedy=f"{name}:min"
    ):
        evaluation_history.parse_metric(name)


@pytest.mark.parametrize(
    ("metric", "values", "best", "since"),
    [
        (LOSS, {}, None, 0),
        (LOSS, {10: 3.0, 20: 2.0, 30: 2.5, 40: 2.0}, 20, 2),  # the first of equal ones
        (ACCURACY, {10: 3.0, 20: 2.0, 30: 2.5}, 10, 2),
        (LOSS, {10: math.nan, 20: 2.0}, 20, 0),
        (ACCURACY, {10: 1.0, 20: math.inf, 30: math.nan}, 10, 2),
        (LOSS, {10: math.nan, 20: math.nan}, None, 2),
    ],
)
def test_the_best_step(
    metric: Metric, values: dict[int, float], best: int | None, since: int
) -> None:
    history = EvaluationHistory(metric, 0, values)
    assert history.find_best() == best
    assert history.count_since_best() == since
    assert not history.has_to_stop(None)
    assert not history.has_to_stop(since + 1)
    assert history.has_to_stop(since) or not since


def save_checkpoints(folder: Path, *steps: int) -> None:
    for step in steps:
        (folder / f"checkpoint_{step}").mkdir()


def test_a_resumed_run_remembers_up_to_its_checkpoint(tmp_path: Path) -> None:
    values = {110: 2.0, 120: math.nan, 130: 2.5, 140: 1.0}
    EvaluationHistory(LOSS, 100, values).write(str(tmp_path))
    save_checkpoints(tmp_path, 110, 130)
    found = evaluation_history.read_history(str(tmp_path), LOSS, 0)
    assert (found.first_step, list(found.values), found.find_best()) == (100, [110, 120, 130], 110)
    assert found.has_to_stop(2)
    assert not found.has_to_stop(3)


def test_another_metric_or_a_new_run_begins_anew(tmp_path: Path) -> None:
    before = EvaluationHistory(LOSS, 100, {110: 2.0})
    before.write(str(tmp_path))
    assert evaluation_history.read_history(str(tmp_path), LOSS, 7) == EvaluationHistory(LOSS, 7)
    save_checkpoints(tmp_path, 110)
    for metric in (ACCURACY, Metric("loss", "max")):
        history = evaluation_history.read_history(str(tmp_path), metric, 7)
        assert history == EvaluationHistory(metric, 110, others=[before])


def test_a_switch_back_to_a_metric_finds_its_values(tmp_path: Path) -> None:
    EvaluationHistory(LOSS, 100, {110: 2.0}, kept_until=100).write(str(tmp_path))
    save_checkpoints(tmp_path, 110, 120)
    for metric in (ACCURACY, Metric("f1", "max"), LOSS):
        history = evaluation_history.read_history(str(tmp_path), metric, 7)
        history.write(str(tmp_path))
    assert (history.metric, history.values, history.kept_until) == (LOSS, {110: 2.0}, 100)
    assert [other.metric.name for other in history.others] == ["f1", "accuracy"]


def test_a_run_without_a_history_begins_where_it_is(tmp_path: Path) -> None:
    save_checkpoints(tmp_path, 40, 60)
    assert evaluation_history.read_history(str(tmp_path), LOSS, 0) == EvaluationHistory(LOSS, 60)


@pytest.mark.parametrize("text", ["", "{}", '{"metric": "loss", "mode": "min", "values": 1}'])
def test_a_damaged_history_is_refused(tmp_path: Path, text: str) -> None:
    save_checkpoints(tmp_path, 10)
    (tmp_path / "rosetta").mkdir()
    (tmp_path / "rosetta" / "evaluations.json").write_text(text)
    with errors.expect_user_error(errors.DAMAGED, where="evaluations.json"):
        evaluation_history.read_history(str(tmp_path), LOSS, 0)


@pytest.mark.parametrize(
    ("step", "values", "overdue"),
    [
        (100, {}, False),  # the run has just begun
        (150, {}, True),  # killed between the first checkpoint and its evaluation
        (130, {}, False),  # stopped by a signal between evaluations
        (200, {150: 1.0, 200: 2.0}, False),
        (250, {150: 1.0, 200: 2.0}, True),
        (230, {150: 1.0, 200: 2.0}, False),
        (260, {150: 1.0, 200: 2.0, 250: 3.0}, True),  # the last step is always evaluated
    ],
)
def test_a_killed_run_evaluates_what_it_did_not(
    step: int, values: dict[int, float], overdue: bool
) -> None:
    history = EvaluationHistory(LOSS, 100, values)
    assert history.is_overdue(step, period=50, last_step=260) == overdue
