"""`rosetta accept` before it starts a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.core import acceptance, gpu_query
from tests.support import errors


def test_a_missing_gpu_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(gpu_query, "detect_gpus", lambda _: [])
    monkeypatch.setattr(gpu_query, "has_gpu_device_file", lambda: False)
    assert cli.main(["accept", "--folder", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "GPU" in error
    assert "--tiny" in error
    assert not (tmp_path / "out").exists()


def test_rows_and_groups_are_selected_in_order() -> None:
    def select(*names: str) -> list[str]:
        return [row.name for row in acceptance.select_rows(list(names), "--only")]

    assert select() == [row.name for row in acceptance.ROWS]
    assert select("run", "nn") == ["attention", "products", "kernels", "run"]
    with errors.expect_user_error(errors.UNKNOWN, where="--only", value="nnn", remedy="nn"):
        select("nnn")


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--only", "x"], ["--plan", "/none"]])
def test_bad_options_write_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert cli.main(["accept", "--folder", str(tmp_path / "out"), *words]) == 2
    assert not (tmp_path / "out").exists()
    capsys.readouterr()
