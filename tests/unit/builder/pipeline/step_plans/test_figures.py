"""Which figures of a plan are recorded, and which changes of them count."""

from __future__ import annotations

import pytest

from builder.pipeline.step_plans import figures
from builder.pipeline.step_plans.figures import Move
from tests.support.plan_environment import make_report


def test_collectives_are_summed_by_kind_and_the_share_of_fp8_is_that_of_the_flops() -> None:
    assert figures.read_figures(make_report()) == {
        "peak": 7_000_000_000,
        "launches": 1000,
        "bytes": 45_000_000_000,
        "fp8-share": 0.75,
        "time": 0.0288,
        "all-gather-calls": 1,
        "all-gather-bytes": 100_000_000,
        "all-reduce-calls": 5,
        "all-reduce-bytes": 500_000_000,
    }


def test_a_step_without_products_has_no_share_of_fp8() -> None:
    assert figures.read_figures(make_report(flops_by_role={}))["fp8-share"] == 0


@pytest.mark.parametrize(
    ("old", "new", "exceeds"),
    [(1000, 1010, False), (1000, 1011, True), (1000, 989, True), (0, 1, True), (5, 0, True)],
)
def test_more_than_one_percent_is_too_much(old: float, new: float, *, exceeds: bool) -> None:
    assert Move("launches", old, new).exceeds_tolerance is exceeds


def test_what_differs_is_listed_with_figures_that_came_and_went() -> None:
    moves = figures.list_moves(
        {"peak": 5, "launches": 7, "all-gather-calls": 1}, {"peak": 5, "launches": 8, "time": 2}
    )
    assert moves == [Move("launches", 7, 8), Move("all-gather-calls", 1, 0), Move("time", 0, 2)]


def test_a_table_has_a_row_for_each_move() -> None:
    rows = figures.format_moves([Move("bytes", 45e9, 54e9), Move("all-gather-calls", 0, 1)])
    cells = [row.split() for row in rows[1:]]
    assert cells == [
        ["bytes", "45.000", "GB", "54.000", "GB", "+20.00%"],
        ["all-gather-calls", "0", "1", "new"],
    ]
