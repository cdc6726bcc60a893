"""The picture of a loss that tutorials show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "loss_curve.py"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(PROGRAM), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def write_run(folder: Path, losses: list[object]) -> Path:
    folder.mkdir()
    reports = [{"step": 10 * number, "loss": loss} for number, loss in enumerate(losses, 1)]
    (folder / "progress.jsonl").write_text("".join(f"{json.dumps(report)}\n" for report in reports))
    return folder


def test_runs_become_lines_with_a_description(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a&b", [5.0, "nan", 2.5])
    second = write_run(tmp_path / "c", [4.0, 1.0])
    done = run(first, second / "progress.jsonl", "--output", tmp_path / "x.svg", "--mark", 20)
    assert done.returncode == 0, done.stderr
    picture = ET.parse(tmp_path / "x.svg").getroot()  # noqa: S314 (our own file)
    title = picture.findtext("{http://www.w3.org/2000/svg}title") or ""
    assert "a&b: from 5.00 at step 10 to 2.50 at step 30." in title
    lines = [node.get("class") for node in picture.iter() if node.get("d")]
    assert [name for name in lines if name == "mark"] == ["mark"]
    dots = [node for node in picture.iter() if str(node.get("class")).startswith("dot")]
    assert len(dots) == 4


@pytest.mark.parametrize("losses", [None, [], [3.0], ["nan", "nan"]])
def test_a_folder_without_losses_is_one_line(losses: list[object] | None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if losses is not None:
        write_run(folder, losses)
    done = run(folder, "--output", tmp_path / "x.svg")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(folder) in done.stderr
