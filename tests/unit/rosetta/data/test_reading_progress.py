"""The bar of `rosetta data check`: how much of the files was read, for each kind of files."""

from __future__ import annotations

import io
import re
import sys
from typing import TYPE_CHECKING

import pytest

from rosetta import cli
from rosetta.data import reading_progress
from tests.support import data_sources, required_modules

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("jsonl", "gz", "zst", "csv", "parquet", "saved", "arrayrecord")
MODULES = {
    "parquet": "pyarrow",
    "saved": "pyarrow",
    "arrayrecord": "array_record",
    "zst": "zstandard",
}
RECORDS = [{"id": str(number), "text": f"good words number {number}"} for number in range(5000)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def list_counts(self) -> list[tuple[int, int]]:
        """Return the number and the total of each bar."""
        bars = re.findall(r"reading \[#* *\] ([\d,]+)/([\d,]+) MB", self.getvalue())
        return [(int(done.replace(",", "")), int(total.replace(",", ""))) for done, total in bars]


@pytest.fixture(autouse=True)
def _small_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(reading_progress, "_MEGABYTE", 100)
    monkeypatch.setattr(reading_progress, "_BYTES_PER_READ", 1000)
    monkeypatch.setattr("rosetta.core.log._SECONDS_BETWEEN_BARS", 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_terminal_shows_a_bar(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind in MODULES:
        required_modules.need_modules(MODULES[kind])
    data = data_sources.write_records(kind, tmp_path, RECORDS)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["data", "check", data, "--objective", "lm"]) == 0
    assert "5,000 records" in capsys.readouterr().out
    counts = terminal.list_counts()
    assert counts[0][0] == 0
    assert counts[-1][0] == counts[-1][1]
    assert [done for done, _ in counts] == sorted(done for done, _ in counts)
    assert len(counts) == len(set(counts)) >= 2


def test_records_of_tfrecord_files_move_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_sources.write_tfrecords(tmp_path / "a.tfrecord", RECORDS)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["data", "check", data, "--objective", "lm"]) == 0
    counts = terminal.list_counts()
    assert len(counts) > 10
    assert counts[-1][0] == counts[-1][1]


def test_tokens_of_megatron_files_move_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_sources.write_megatron(tmp_path / "a", [[3, 4, 5]] * 1000)
    monkeypatch.setattr("rosetta.data.megatron_files._TOKENS_PER_CHECK", 100)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["data", "check", data, "--objective", "lm"]) == 0
    counts = terminal.list_counts()
    assert len(counts) > 10
    assert counts[-1][0] == counts[-1][1]


def test_small_files_and_logs_have_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_sources.write_records("jsonl", tmp_path, RECORDS)
    assert cli.main(["data", "check", data, "--objective", "lm"]) == 0
    assert "reading" not in capsys.readouterr().err
    monkeypatch.setattr(reading_progress, "_MEGABYTE", 10**6)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["data", "check", data, "--objective", "lm"]) == 0
    assert terminal.list_counts() == []
    assert "records" in capsys.readouterr().out
