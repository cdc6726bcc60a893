from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.core import log
from rosetta.health import progress
from rosetta.health.progress import ProgressReport, ProgressWriter, StepWork

REPORT = ProgressReport(1200, 100000, 3.14159, 2.5, 163840.0, 0.456, 0.012, 39520.0)


def test_rates_are_means_over_the_period() -> None:
    # 10 steps in 4 s, 1 s of which waiting for data; each step 2e12 FLOPs on 2 devices of 10e12.
    found = progress.make_report(StepWork(2e12, 6400, 2, 10e12), 50, 100, 10, 4.0, 1.0, 2.0)
    assert found == ProgressReport(50, 100, 2.0, 2.5, 16000.0, 2e12 / 0.4 / 20e12, 0.25, 20.0)


def test_mfu_is_the_share_of_the_peak() -> None:
    assert progress.compute_mfu(6e12, 2.0, 3, 4e12) == pytest.approx(0.25)
    assert progress.compute_mfu(6e12, 2.0, 3, None) is None


def test_what_is_not_known_is_none() -> None:
    found = progress.make_report(StepWork(2e12, 6400, 2, None), 50, None, 10, 4.0, 5.0, None)
    assert (found.total, found.loss, found.mfu, found.seconds_left) == (None, None, None, None)
    assert found.input_wait == 1.0
    assert found.format_line() == "step 50  2.5 steps/s  16,000 tokens/s  input wait 100.0 %"
    assert (
        progress.make_report(StepWork(1, 1, 1, None), 50, 40, 1, 1.0, 0.0, None).seconds_left
        is None
    )


def test_the_line() -> None:
    assert (
        REPORT.format_line()
        == "step 1,200/100,000  loss 3.1416  2.5 steps/s  163,840 tokens/s  MFU 45.6 %  input wait 1.2 %  10 h 58 min left"
    )
    assert "loss nan" in ProgressReport(1, 2, math.nan, 1.0, 1.0, None, 0.0, None).format_line()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "0 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 05 min"),
        (3600 * 76, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert progress.format_duration(seconds) == said


def _lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def test_it_is_appended_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "not yet"
    ProgressWriter(str(folder)).write(REPORT)
    ProgressWriter(str(folder)).write(
        ProgressReport(1300, 100000, math.nan, 2.5, 1.0, None, 0.0, None)
    )
    first, second = _lines(folder)
    assert first == {
        "step": 1200,
        "total": 100000,
        "loss": 3.14159,
        "steps_per_second": 2.5,
        "tokens_per_second": 163840.0,
        "mfu": 0.456,
        "input_wait": 0.012,
        "seconds_left": 39520.0,
        **dict.fromkeys(
            (
                "learning_rate",
                "gradient_norm",
                "loss_scale",
                "overflows",
                "device_memory",
                "device_memory_limit",
            ),
            None,
        ),
    }
    assert (second["loss"], second["mfu"]) == ("nan", None)
    assert math.isnan(float(str(second["loss"])))
    assert capsys.readouterr().err.splitlines()[0] == REPORT.format_line()


def test_what_else_is_known_is_written_and_what_people_should_read_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = progress.make_report(
        StepWork(1, 1, 1, None),
        50,
        None,
        10,
        4.0,
        0.0,
        2.0,
        ({"goodput": 0.5, "host_wait_rank": 3}, ("goodput 50.0 %",)),
    )
    ProgressWriter(str(tmp_path)).write(found)
    (line,) = _lines(tmp_path)
    assert (line["goodput"], line["host_wait_rank"]) == (0.5, 3)
    assert "more" not in line
    assert "said" not in line
    assert capsys.readouterr().err.endswith("  goodput 50.0 %\n")
    assert found.scalars() == {
        "loss": 2.0,
        "input_wait": 0.0,
        "tokens_per_second": 2.5,
        "goodput": 0.5,
    }


def test_half_a_line_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    ProgressWriter(str(tmp_path)).write(REPORT)
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"step": 2, "lo']
    assert json.loads(lines[2])["step"] == 1200


def test_a_run_goes_on_where_progress_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "progress.jsonl").mkdir()
    reporter = ProgressWriter(str(tmp_path))
    reporter.write(REPORT)
    reporter.write(REPORT)
    err = capsys.readouterr().err
    assert err.count("progress is not written any more") == 1
    assert err.count(REPORT.format_line()) == 2


def test_object_stores_get_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ProgressWriter("gs://bucket/m").write(REPORT)
    ProgressWriter(None).write(REPORT)
    assert list(tmp_path.iterdir()) == []


def test_where_stderr_is_a_log_the_terminal_sees_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv(log.TERMINAL_VARIABLE, str(write))
    reporter = ProgressWriter(None)
    reporter.write(REPORT)
    assert os.read(read, 1000).decode() == REPORT.format_line() + "\n"
    os.close(read)
    reporter.write(REPORT)  # nobody listens any more
    os.close(write)
    monkeypatch.setenv(log.TERMINAL_VARIABLE, "987")
    ProgressWriter(None).write(REPORT)


def test_a_line_is_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of other threads come between two writes."""
    written: list[str] = []
    monkeypatch.setattr("sys.stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    log.info("step 10", prefix=False)
    assert written == ["step 10\n"]


FULL = dataclasses.replace(
    REPORT,
    learning_rate=1.5e-4,
    gradient_norm=0.8125,
    loss_scale=65536.0,
    overflows=0,
    device_memory=61 << 30,
    device_memory_limit=140 << 30,
)


def test_the_line_of_a_report_has_rate_gradient_and_memory() -> None:
    line = FULL.format_line()
    assert "rate 0.00015  gradient 0.812" in line
    assert "  61.0/140.0 GiB  " in line


def test_the_line_says_which_steps_the_loss_scale_cost() -> None:
    assert "  loss scale 65,536  " in FULL.format_line()
    halved = dataclasses.replace(FULL, loss_scale=8192.0, overflows=3)
    assert "  loss scale 8,192 (3 skipped)  " in halved.format_line()


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_a_narrow_terminal_keeps_the_loss_and_the_time_left(width: int) -> None:
    line = FULL.format_short_line(width)
    assert "loss 3.14" in line
    assert line.endswith("left") or line == FULL.format_line()
    assert len(line) <= width


@pytest.mark.parametrize(
    ("statistics", "fields"),
    [
        ([None], {}),
        ([{}], {}),
        (
            [
                {"peak_bytes_in_use": 5, "bytes_limit": 9},
                {"peak_bytes_in_use": 7, "bytes_limit": 8},
            ],
            {"device_memory": 7, "device_memory_limit": 8},
        ),
        ([{"peak_bytes_in_use": 5}], {"device_memory": 5}),
    ],
)
def test_the_memory_of_the_fullest_device(statistics: list[Any], fields: dict[str, int]) -> None:
    devices = [SimpleNamespace(memory_stats=lambda value=value: value) for value in statistics]
    assert progress.measure_device_memory(devices) == fields


def test_an_evaluation_is_a_line_and_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"loss": 1.25, "token_accuracy": math.nan}
    progress.write_evaluation(ProgressWriter(str(tmp_path)), 1200, "pairs", values, 3.0)
    line = capsys.readouterr().err
    assert "loss 1.25" in line
    (written,) = _lines(tmp_path)
    assert written == {
        "step": 1200,
        "evaluation": {"pairs": {"loss": 1.25, "token_accuracy": "nan"}},
    }
