"""Few layers give the figures of many, if the figures are linear in the layers."""

from __future__ import annotations

import pytest

from rosetta.plan import layer_extrapolation


def test_linear_figures_are_those_of_the_whole_model() -> None:
    points = [(depth, {"peak": 7.0 + 3.0 * depth, "likely": 0.5 * depth}) for depth in (1, 2)]
    extrapolated = layer_extrapolation.extrapolate(points, 24)
    assert extrapolated.figures == pytest.approx({"peak": 79.0, "likely": 12.0})
    assert not extrapolated.problem
    # The order does not matter, and a third depth on the line changes nothing.
    more = [(4, {"peak": 19.0, "likely": 2.0}), *points]
    assert layer_extrapolation.extrapolate(more, 24).figures == extrapolated.figures


def test_a_measured_step_is_extrapolated_within_two_per_cent() -> None:
    # T5-large on an L40S, 8 sequences, FP8: `rosetta plan` with 1+1, 2+2 and 24+24 layers.
    points = [
        (1, {"peak": 1.688831824e9, "likely": 12.6417e-3, "bytes": 7.6172e9}),
        (2, {"peak": 2.310081592e9, "likely": 18.7550e-3, "bytes": 11.2484e9}),
    ]
    whole = {"peak": 16.180492584e9, "likely": 153.654e-3, "bytes": 91.1005e9}
    extrapolated = layer_extrapolation.extrapolate(points, 24)
    assert extrapolated.figures == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize(
    "points",
    [
        [(1, {"peak": 5.0}), (2, {"peak": 4.0})],
        [(1, {"peak": 1.0}), (2, {"peak": 4.0}), (4, {"peak": 5.0})],
        [(1, {"peak": 1.0, "bytes": 1.0}), (2, {"peak": 2.0})],
    ],
)
def test_figures_that_are_not_linear_are_marked(
    points: list[tuple[int, dict[str, float]]],
) -> None:
    assert layer_extrapolation.extrapolate(points, 24).problem


def test_a_part_of_the_time_may_shrink_to_nothing() -> None:
    part = f"{layer_extrapolation.PART_PREFIX}lookups"
    extrapolated = layer_extrapolation.extrapolate([(1, {part: 3.0}), (2, {part: 2.0})], 24)
    assert (extrapolated.figures, extrapolated.problem) == ({part: 0.0}, "")
