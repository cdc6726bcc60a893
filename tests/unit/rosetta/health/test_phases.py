"""The lines about the phases of a run, and the results at its end."""

from __future__ import annotations

import re
import time

import pytest

from rosetta.health import phases, run_results


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00"), (67, "1:07"), (3599, "59:59"), (3723, "1:02:03")]
)
def test_ages(seconds: float, text: str) -> None:
    assert phases.format_age(seconds) == text


def test_the_age_of_this_process_grows() -> None:
    before = phases.read_process_age()
    time.sleep(0.05)
    assert 0.0 < before < phases.read_process_age()


def test_a_phase_is_a_line_of_the_first_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in ("0", "3"):
        monkeypatch.setenv("SLURM_PROCID", rank)
        phases.begin_phase("reading data")
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\[[\d:]+\] reading data", line)


def test_results_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    for step in (100, 200):
        run_results.set_result("training", f"step {step}")
        run_results.add_metrics("sums", {"accuracy": step / 4})
    run_results.add_metrics("a long name", {"f1": 1.0})
    run_results.write_results()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: step 200"
    assert [line.split() for line in lines[3:]] == [
        ["sums", "accuracy", "50.0000"],
        ["a", "long", "name", "f1", "1.0000"],
    ]
    assert len({len(line) for line in lines[1:]}) == 1
    run_results.write_results()
    assert capsys.readouterr().err == ""
