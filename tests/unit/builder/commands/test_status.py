from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder import cli
from tests.support import nightly_report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROSETTA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/2026-11-28.json").write_text(json.dumps(nightly_report.make_report()))
    return tmp_path


def _status(folder: Path, *more: str) -> int:
    return cli.main(
        ["status", "--reports", str(folder / "reports"), "--output", str(folder / "page"), *more]
    )


def test_the_page_its_badges_and_its_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _status(folder, "--json") == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["verdicts"] == {"thing-cpu": "green"}
    there = sorted(
        path.relative_to(folder / "page").as_posix()
        for path in (folder / "page").rglob("*")
        if path.is_file()
    )
    assert there == [
        "badges/thing-cpu-amd64.svg",
        "badges/thing-cpu-arm64.svg",
        "badges/thing-cpu.svg",
        "index.html",
        "reports.json",
    ]


def test_the_same_reports_give_the_same_bytes_and_yesterdays_page_is_replaced_whole(
    folder: Path,
) -> None:
    assert _status(folder) == 0
    first = (folder / "page/index.html").read_bytes()
    (folder / "page/badges/gone.svg").write_text("old")
    assert _status(folder) == 0
    assert (folder / "page/index.html").read_bytes() == first
    assert not (folder / "page/badges/gone.svg").exists()


def test_a_folder_of_others_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "page").mkdir()
    (folder / "page/thesis.tex").write_text("years of work")
    assert _status(folder) == 2
    assert str(folder / "page") in capsys.readouterr().err
    assert (folder / "page/thesis.tex").read_text() == "years of work"


def test_without_a_report_there_is_no_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reports/2026-11-28.json").unlink()
    assert _status(folder) == 2
    assert "build.py nightly" in capsys.readouterr().err
    assert not (folder / "page").exists()


def test_offline_reads_no_page(folder: Path) -> None:
    assert _status(folder, "--offline", "--earlier", "https://example.invalid/") == 2
