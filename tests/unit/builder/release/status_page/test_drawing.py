from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from builder.release.status_page import drawing
from builder.release.status_page.reports import Behind, PastState, Run


def _read(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - ours


def _run(**losses: float | None) -> Run:
    return Run(
        devices=2,
        steps_per_second=1.0,
        resumed_from=20,
        losses={step.removeprefix("s"): loss for step, loss in losses.items()},
    )


def test_a_curve_falls_where_the_loss_falls_and_marks_the_restore() -> None:
    svg = _read(drawing.draw_loss_curves([_run(s5=5.0, s20=3.0, s30=1.0)], "t5x & <more>"))
    (line,) = [each for each in svg if each.tag == "polyline"]
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # SVG counts downwards
    restored = next(each for each in svg if each.get("class") == "restored")
    assert float(restored.attrib["x1"]) == points[1][0]
    assert (
        svg.attrib["aria-label"]
        == "Training loss of t5x & <more>. 2 devices: from 5.000 to 1.000 in 30 steps."
    )
    assert {each.text for each in svg if each.tag == "text"} == {
        "1.00",
        "3.00",
        "5.00",
        "step 5",
        "step 30",
    }


@pytest.mark.parametrize("runs", [[], [_run(s5=1.0)], [_run(s5=float("nan"), s10=None, s15=2.0)]])
def test_no_curve_of_less_than_two_numbers(runs: list[Run]) -> None:
    assert drawing.draw_loss_curves(runs, "x") == ""


def test_a_flat_loss_is_drawn_and_lines_differ_in_more_than_colour() -> None:
    svg = _read(drawing.draw_loss_curves([_run(s5=2.0, s10=2.0), _run(s5=2.0, s10=2.0)], "x"))
    lines = [each for each in svg if each.tag == "polyline"]
    assert len({each.attrib["stroke-dasharray"] for each in lines}) == 2


def test_how_far_behind_over_time() -> None:
    def past_state(commits: int) -> PastState:
        return PastState(date="2026-01-01", count=1, behind=Behind(commits=commits, days=1))

    assert "9, 0" in drawing.draw_distance([past_state(9), past_state(0)], "up")
    assert drawing.draw_distance([past_state(9), past_state(9)], "up") == ""
    assert drawing.draw_distance([], "up") == ""


def test_a_badge_says_what_it_shows_and_escapes_it() -> None:
    text = drawing.draw_badge('a "<b>', "green 2026-11-28", "green")
    svg = _read(text)
    assert svg.attrib["aria-label"] == 'a "<b>: green 2026-11-28'
    assert drawing.COLOURS["green"] in text


@pytest.mark.parametrize("colour", sorted(drawing.COLOURS))
def test_white_on_each_colour_can_be_read(colour: str) -> None:
    parts = [int(drawing.COLOURS[colour][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    assert (
        1.05
        / (
            sum(
                weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
            )
            + 0.05
        )
        >= 4.5
    )
