from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rosetta.health import goodput
from rosetta.health.goodput import Goodput


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(goodput, "PROCESS_START", 1000.0)
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def test_a_step_that_is_trained_twice_counts_once_and_a_pause_not_at_all(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Goodput(str(tmp_path))
    first.resume_at(0)
    clock[0] = 1020.0
    assert first.record(100, 10.0) == pytest.approx(0.5)
    clock[0] = 1040.0
    assert first.record(200, 20.0) == pytest.approx(0.75)
    # It is killed, and begins again at the checkpoint of step 150, half of the second report's steps.
    clock[0] += 3600.0  # and an hour later: it is no time of the run
    monkeypatch.setattr(goodput, "PROCESS_START", clock[0])
    second = Goodput(str(tmp_path))
    second.resume_at(150)
    clock[0] += 40.0
    assert second.record(200, 10.0) == pytest.approx((10 + 10 + 10) / 80)
    assert json.loads((tmp_path / goodput.FILE).read_text())["starts"] == 2


def test_an_earlier_releases_file_goes_on(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / goodput.FILE
    path.write_text(
        json.dumps(
            {"schema": 1, "first_start": 1000.0, "starts": 1, "points": [[0, 0.0], [100, 20.0]]}
        )
    )
    os.utime(path, (1040.0, 1040.0))
    clock[0] = 5000.0
    monkeypatch.setattr(goodput, "PROCESS_START", 5000.0)
    made = Goodput(str(tmp_path))
    made.resume_at(100)
    clock[0] += 10.0
    assert made.record(110, 5.0) == pytest.approx(25 / 50)
    assert made.starts == 2


def test_it_stays_small(tmp_path: Path, clock: list[float]) -> None:
    made = Goodput(str(tmp_path))
    made.resume_at(0)
    for step in range(1, 2000):
        clock[0] += 2.0
        found = made.record(step, 1.0)
    assert found == pytest.approx(0.5, rel=1e-3)
    kept = json.loads((tmp_path / goodput.FILE).read_text())["points"]
    assert len(kept) <= 201
    assert kept[-1] == [1999, 1999.0]


def test_what_cannot_be_read_begins_anew(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / goodput.FILE).write_text("{")
    made = Goodput(str(tmp_path))
    made.resume_at(5)
    clock[0] = 1010.0
    assert made.record(10, 10.0) == pytest.approx(1.0)
