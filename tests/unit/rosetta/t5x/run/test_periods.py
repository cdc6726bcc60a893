"""The default of one period follows the period that the user sets."""

from __future__ import annotations

from typing import Any

import pytest

from rosetta.t5x.run import gin_reader, periods, preflight
from tests.support import errors, shipped_gin


@pytest.mark.parametrize(
    ("period", "wanted", "fitted"),
    [(700, 6000, 6300), (400, 1000, 800), (2500, 1000, 1250), (7, 5, 7), (6000, 6000, 6000)],
)
def test_the_nearest_multiple_or_divisor(period: int, wanted: int, fitted: int) -> None:
    assert periods.find_nearest_fit(period, wanted) == fitted


@pytest.mark.parametrize(
    ("chosen", "user_text", "more", "expected"),
    [
        ({"EVAL_PERIOD": 700}, "", {}, {"SAVE_PERIOD": 6300}),
        ({"SAVE_PERIOD": 2500}, "", {}, {"EVAL_PERIOD": 5000}),
        ({"EVAL_PERIOD": 500}, "", {}, {}),  # they fit already
        ({"EVAL_PERIOD": 700}, "SAVE_PERIOD = 1000", {"SAVE_PERIOD": 1000}, {}),
        ({"EVAL_PERIOD": 700, "SAVE_PERIOD": 1000}, "", {}, {}),  # refused later on
        ({"EVAL_PERIOD": 700}, "", {"EVAL_DATA": None}, {}),
        # Each step that is evaluated needs a checkpoint, because it may be the best.
        ({"EVAL_PERIOD": 500}, "", {"KEEP_BEST": "loss"}, {"SAVE_PERIOD": 500}),
        # An early stop needs no checkpoints.
        ({"EVAL_PERIOD": 500}, "", {"EARLY_STOP_PATIENCE": 3}, {}),
        ({"EVAL_PERIOD": 700}, "", {"EARLY_STOP_PATIENCE": 3}, {"SAVE_PERIOD": 6300}),
        ({"SAVE_PERIOD": 9000}, "", {"KEEP_BEST": "loss"}, {"EVAL_PERIOD": 9000}),
        ({}, "", {"KEEP_BEST": "loss", "SAVE_PERIOD": 5000}, {"SAVE_PERIOD": 6000}),
        ({}, "", {"SAVE_PERIOD": 5000}, {}),  # of a shipped file, without a best checkpoint
        ({"EVAL_PERIOD": 500, "SAVE_PERIOD": 1000}, "", {"KEEP_BEST": "loss"}, {}),
    ],
)
def test_the_default_period_is_fitted(
    tmp_path: Any,
    chosen: dict[str, Any],
    user_text: str,
    more: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    user_file = tmp_path / "mine.gin"
    user_file.write_text(user_text)
    configuration = shipped_gin.read_pretraining({"EVAL_DATA": "text:x", **more, **chosen})
    fitted, notes = periods.fit_default_period(
        chosen, configuration, gin_reader.read_configuration([user_file], (tmp_path,))
    )
    assert fitted == expected
    assert bool(notes) == bool(expected)
    if fitted:
        preflight.check_periods(configuration.bind(fitted))


def test_an_evaluation_without_a_checkpoint_is_refused() -> None:
    chosen = {"EVAL_DATA": "text:x", "SAVE_PERIOD": 1000, "EVAL_PERIOD": 500}
    for setting in ({}, {"EARLY_STOP_PATIENCE": 2}):
        preflight.check_periods(shipped_gin.read_pretraining({**chosen, **setting}))
    with errors.expect_user_error(
        errors.CONFLICT, where="SAVE_PERIOD=1000", remedy="SAVE_PERIOD=500"
    ):
        preflight.check_periods(shipped_gin.read_pretraining({**chosen, "KEEP_BEST": "loss"}))


@pytest.mark.parametrize(
    ("settings", "kind", "facts"),
    [
        ({"KEEP_BEST": "loss"}, errors.MISSING, {"where": "KEEP_BEST=loss", "remedy": "EVAL_DATA"}),
        (
            {"EARLY_STOP_PATIENCE": 2},
            errors.MISSING,
            {"where": "EARLY_STOP_PATIENCE=2", "remedy": "EVAL_DATA"},
        ),
        (
            {"KEEP_BEST": "accuracy", "EVAL_DATA": "text:x"},
            errors.UNKNOWN,
            {"value": "accuracy", "remedy": ("loss", "token_accuracy")},
        ),
        (
            {"KEEP_BEST": "loss:best", "EVAL_DATA": "text:x"},
            errors.INVALID,
            {"remedy": "METRIC:min"},
        ),
        (
            {
                "KEEP_BEST": "loss",
                "EVAL_DATA": "text:x",
                "t5x.utils.CheckpointConfig.save": None,
            },
            errors.CONFLICT,
            {"remedy": "CHECKPOINT_DISABLE"},
        ),
    ],
    ids=[
        "no evaluation",
        "no evaluation to stop by",
        "metric of answers",
        "mode",
        "no checkpoints",
    ],
)
def test_a_best_checkpoint_that_cannot_be_found_is_refused(
    settings: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts):
        preflight.check_best_metric(shipped_gin.read_pretraining(settings))


def test_a_run_without_a_best_checkpoint_is_not_checked() -> None:
    preflight.check_best_metric(shipped_gin.read_pretraining({}))
    preflight.check_best_metric(
        shipped_gin.read_pretraining({"EVAL_DATA": "text:x", "KEEP_BEST": "token_accuracy:max"})
    )
