"""Curves of runs: what is read, and how they are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.curves import axis, run_curves, terminal_chart
from rosetta.curves.run_curves import Curve
from tests.support import errors
from tests.support.required_modules import need_modules

LOSSES = {100: 4.0, 200: 2.0, 300: 1.0}


def write_run(folder: Path, *reports: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(report)}\n" for report in reports)
    (folder / run_curves.PROGRESS_FILE).write_text(text)
    return folder


def write_losses(folder: Path, losses: dict[int, float]) -> Path:
    return write_run(folder, *({"step": step, "loss": loss} for step, loss in losses.items()))


def test_a_step_that_was_trained_again_counts_once(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "small",
        {"step": 100, "loss": 4.0},
        {"step": 200, "loss": 9.0},
        {"step": 200, "loss": 2.0, "mfu": None},
        {"step": 200, "evaluation": {"pairs": {"loss": 2.5, "accuracy": 50.0}}},
        {"step": 300, "loss": "nan"},
        {"step": 400, "loss": 1.5},
    )
    curve = run_curves.read_curve(str(run))
    assert (curve.name, curve.points) == ("small", {100: 4.0, 200: 2.0, 400: 1.5})
    assert run_curves.read_curve(str(run / "progress.jsonl")) == curve
    assert run_curves.read_curve(str(run), "pairs/accuracy").points == {200: 50.0}


def test_the_only_run_below_a_folder_is_found(tmp_path: Path) -> None:
    write_losses(tmp_path / "logs" / "job", LOSSES)
    assert run_curves.read_curve(str(tmp_path)).name == "job"


@pytest.mark.parametrize(
    ("text", "value", "kind", "facts"),
    [
        (None, "loss", errors.MISSING, {"remedy": "folder"}),
        ("", "loss", errors.MISSING, {"value": "loss"}),
        ('{"step": 1, "loss": 2.0}\n', "mfu", errors.UNKNOWN, {"value": "mfu", "remedy": "loss"}),
        ('{"step": 1, "loss": 2.0}\nhalf\n', "loss", errors.INVALID, {"where": "jsonl:2"}),
        ("[1]\n", "loss", errors.INVALID, {"where": "jsonl:1"}),
        ('{"loss": 2.0}\n', "loss", errors.INVALID, {"names": "KeyError"}),
    ],
)
def test_what_cannot_be_drawn(
    tmp_path: Path, text: str | None, value: str, kind: str, facts: dict[str, Any]
) -> None:
    if text is not None:
        (tmp_path / "progress.jsonl").write_text(text)
    with errors.expect_user_error(kind, **facts):
        run_curves.read_curve(str(tmp_path), value)


def test_two_runs_below_a_folder_are_not_guessed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_losses(tmp_path / name, LOSSES)
    with errors.expect_user_error(errors.INVALID, where=str(tmp_path), names=("a", "b")):
        run_curves.read_curve(str(tmp_path))


@pytest.mark.parametrize(
    "values", [[0.0], [1.0, 1.0], [-3.0, 5.0], [1e-6, 2e-6], [0.5, 1e6], [3.14159, 2.71828]]
)
def test_an_axis_holds_its_values(values: list[float]) -> None:
    made = axis.make_axis(values)
    assert made.low < made.high
    assert 2 <= len(made.ticks) <= 8
    assert all(0 <= made.place(value, 100) <= 99 for value in values)
    assert (made.place(made.low, 100), made.place(made.high, 100)) == (0, 99)


def test_the_chart_of_a_falling_loss_falls() -> None:
    chart = terminal_chart.draw_chart([Curve("small", LOSSES)], "loss", 60)
    rows = [line.partition("|")[2] for line in chart.splitlines() if "|" in line]
    columns = [row.find("*") for row in rows if "*" in row]
    assert columns == sorted(columns)
    assert len(columns) > len(rows) / 2
    assert all(len(line) <= 60 for line in chart.splitlines())


def test_two_runs_have_symbols_of_their_own() -> None:
    curves = [Curve("small", LOSSES), Curve("base", {100: 3.0, 200: 3.0})]
    chart = terminal_chart.draw_chart(curves, "loss")
    assert chart.splitlines()[-2:] == ["* small", "o base"]
    assert chart.count("o") > 10


def test_a_run_with_one_report_is_drawn() -> None:
    assert "*" in terminal_chart.draw_chart([Curve("small", {100: 4.0})], "loss")


def test_the_png_has_each_group_of_points_and_the_limit(tmp_path: Path) -> None:
    need_modules("PIL")
    from PIL import Image

    from rosetta.curves import png_chart
    from rosetta.curves.png_chart import Points

    groups = [Points("front", [(1.0, 5.0), (2.0, 4.0)], joined=True), Points("late", [(3.0, 6.0)])]
    file = tmp_path / "front.png"
    png_chart.write_scatter(groups, "a search", ("GB", "ms"), 2.5, file)
    with Image.open(file) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(10**6) or ()}
    assert {(0x1F, 0x6F, 0xB4), (0xD1, 0x49, 0x5B), (0x22, 0x22, 0x22)} <= colours
    assert [path.name for path in tmp_path.iterdir()] == ["front.png"]


def test_the_png_has_a_curve_of_each_run(tmp_path: Path) -> None:
    need_modules("PIL")
    from PIL import Image

    from rosetta.curves import png_chart

    file = tmp_path / "new" / "loss.png"
    png_chart.write_chart([Curve("a", LOSSES), Curve("b", {100: 3.0, 300: 0.5})], "loss", file)
    with Image.open(file) as picture:
        colours = picture.convert("RGB").getcolors(1 << 20)
        assert picture.format == "PNG"
    counts = {colour: count for count, colour in colours or []}
    assert counts[(0x1F, 0x6F, 0xB4)] > 500
    assert counts[(0xD1, 0x49, 0x5B)] > 500


def test_the_command_prints_the_chart_and_its_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_losses(tmp_path / "small", LOSSES)
    assert cli.main(["plot", str(run)]) == 0
    assert "*" in capsys.readouterr().out
    assert cli.main(["plot", str(run), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["result"]
    assert document["runs"] == [{"name": "small", "points": [[100, 4.0], [200, 2.0], [300, 1.0]]}]
    assert cli.main(["plot", str(tmp_path / "nowhere")]) == 2
