"""The default of one period follows the period that the user sets."""

from __future__ import annotations

from typing import Any

import pytest

from rosetta.t5x.run import gin_reader, periods, preflight
from tests.support import shipped_gin


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
