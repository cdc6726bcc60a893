"""The runner of `rosetta accept`, with processes that need no JAX: tests/support/fake_rows.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rosetta.accept import report, row_process, runner
from rosetta.core import acceptance
from tests.support import errors

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs rows with these cases, and returns the document."""
    monkeypatch.setattr(row_process, "MODULE", "tests.support.fake_rows")
    monkeypatch.setenv("FAKE_FOLDER", str(tmp_path))

    def run(cases: dict[str, Any], **changes: Any) -> dict[str, Any]:
        monkeypatch.setenv("FAKE_ROWS", json.dumps(cases))
        options = runner.Options(
            tmp_path / "out",
            acceptance.select_rows(list(cases), "--only"),
            seconds=120,
            tiny=False,
            again=False,
            plans=(),
        )
        return runner.Acceptance(replace(options, **changes), print).run()

    return run


def _list_begun(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "begun").read_text().splitlines()]


def _find_row(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in document["rows"] if row["row"] == name)


def test_a_case_that_ends_its_process_does_not_end_the_others(fake: Any, tmp_path: Path) -> None:
    document = fake(
        {
            "attention": {"a": "pass", "b": "abort", "c": "pass", "d": "raise", "e": "skip"},
            "products": {"a": "pass"},
        }
    )
    row = _find_row(document, "attention")
    statuses = {case["case"]: case["status"] for case in row["cases"]}
    assert statuses == {
        "a": "measured",
        "b": "failed",
        "c": "measured",
        "d": "failed",
        "e": "skipped",
    }
    assert "SIGABRT" in row["cases"][1]["reason"]
    assert "planted error" in row["cases"][3]["reason"]
    assert (row["status"], row["ok"], document["ok"]) == ("failed", False, False)
    assert _find_row(document, "products")["status"] == "measured"
    assert _list_begun(tmp_path).count("attention/a") == 1
    text = report.format_results(document, "FILE")
    assert "SIGABRT" in text
    assert "nan us" in text


def test_a_check_that_fails_fails_the_whole(fake: Any) -> None:
    document = fake({"products": {"a": "fail-check"}})
    assert (_find_row(document, "products")["status"], document["ok"]) == ("measured", False)
    assert "FAILED: a check is 2" in report.format_results(document, "FILE")


def test_a_case_that_hangs_is_ended(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CASE_SECONDS", "0.5")
    document = fake({"attention": {"a": "hang", "b": "pass"}})
    row = _find_row(document, "attention")
    assert [case["status"] for case in row["cases"]] == ["failed", "measured"]
    assert "in time" in row["cases"][0]["reason"]


def test_a_program_that_ends_the_compiler_is_named_to_its_case(fake: Any) -> None:
    document = fake({"steps": {"a": "abort-compiler", "b": "compile"}})
    first, second = _find_row(document, "steps")["cases"]
    assert "SIGABRT" in first["notes"][0]
    assert second["notes"] == []


def test_what_has_no_time_is_done_by_the_next_call(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LEAST_SECONDS", 0.0)
    cases = {"attention": {"a": "pass", "b": "block"}, "products": {"a": "pass"}}
    document = fake(cases, seconds=6.0)
    assert _find_row(document, "attention")["status"] == "unfinished"
    assert document["ok"]
    assert "products" in document["missing"]
    (tmp_path / "unblocked").touch()
    document = fake(cases)
    assert [row["status"] for row in document["rows"]] == ["measured", "measured"]
    assert _list_begun(tmp_path) == ["attention/a", "attention/b", "attention/b", "products/a"]
    fake(cases)  # nothing is left to do
    assert len(_list_begun(tmp_path)) == 4
    fake(cases, again=True)
    assert len(_list_begun(tmp_path)) == 7


def test_a_killed_call_is_continued(fake: Any, tmp_path: Path) -> None:
    cases = {
        "attention": {"a": "pass"},
        "products": {"a": "pass", "b": "block", "c": "pass"},
    }
    code = (
        "from rosetta.accept import row_process; row_process.MODULE = 'tests.support.fake_rows'\n"
        "import sys; from rosetta import cli; sys.exit(cli.main())"
    )
    command = [
        *(sys.executable, "-c", code, "accept", "--only", "attention,products"),
        *("--folder", str(tmp_path / "out")),
    ]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cuda",
        "FAKE_ROWS": json.dumps(cases),
        "FAKE_FOLDER": str(tmp_path),
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        begun = tmp_path / "begun"
        deadline = time.monotonic() + 60
        while not (begun.exists() and "products/b" in begun.read_text()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = json.loads((tmp_path / "out" / acceptance.RESULT_FILE).read_text())
    assert [row["row"] for row in kept["rows"]] == ["attention"]  # written after the row
    blocked = int(begun.read_text().split()[-1])
    while Path(f"/proc/{blocked}").exists():  # it dies with the call that was killed
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (tmp_path / "unblocked").touch()
    document = fake(cases)
    assert [case["status"] for row in document["rows"] for case in row["cases"]] == ["measured"] * 4
    assert _list_begun(tmp_path) == [
        "attention/a",
        "products/a",
        "products/b",
        "products/b",
        "products/c",
    ]


def test_the_results_of_another_machine_are_not_continued(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake({"attention": {"a": "pass"}})
    monkeypatch.setenv("FAKE_GPU", "NVIDIA B200")
    with errors.expect_user_error(errors.DIFFERS, where=acceptance.RESULT_FILE, remedy="--folder"):
        fake({"attention": {"a": "pass"}})


def test_a_damaged_file_is_refused(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / acceptance.RESULT_FILE).write_text('{"schema": 1, "rows": 3}')
    with errors.expect_user_error(errors.DAMAGED, where=acceptance.RESULT_FILE):
        fake({"attention": {"a": "pass"}})
    assert not (tmp_path / "begun").exists()


def test_what_autotuning_chose_is_merged(fake: Any, tmp_path: Path) -> None:
    work = tmp_path / "out" / runner.WORK_FOLDER
    for number in range(2):
        folder = work / f"steps-{number}"
        folder.mkdir(parents=True)
        (folder / acceptance.AUTOTUNE_FILE).write_text(
            f'version: 3\nresults {{\n  device: "d"\n  hlo: "{number}"\n  result {{ }}\n}}\n'
        )
    document = fake({"attention": {"a": "pass"}})
    merged = Path(document["autotune_results"]).read_text()
    assert (merged.count("version"), merged.count("results {")) == (1, 2)
