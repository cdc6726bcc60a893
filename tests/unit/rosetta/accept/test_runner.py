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
from rosetta.core.errors import UserError
from tests.support import errors, process_state

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
        return runner.run_acceptance(replace(options, **changes), print)

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


def test_a_case_that_hangs_is_ended_with_its_processes(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LIMITS", '{"case_seconds": 0.5}')
    document = fake({"attention": {"a": "orphan", "b": "pass"}})
    row = _find_row(document, "attention")
    assert [case["status"] for case in row["cases"]] == ["failed", "measured"]
    assert "in time" in row["cases"][0]["reason"]
    assert process_state.wait_until_ended(int((tmp_path / "orphan").read_text()))


def test_a_case_that_outlasts_its_row_has_failed(fake: Any, tmp_path: Path) -> None:
    rows = [replace(row, seconds=4) for row in acceptance.select_rows(["attention"], "--only")]
    cases = {"attention": {"a": "pass", "b": "hang", "c": "pass"}}
    row = _find_row(fake(cases, rows=rows), "attention")
    assert [case["status"] for case in row["cases"]] == ["measured", "failed"]
    assert (row["status"], row["ok"]) == ("unfinished", False)
    row = _find_row(fake(cases), "attention")
    assert (row["status"], row["ok"]) == ("failed", False)
    assert _list_begun(tmp_path) == ["attention/a", "attention/b", "attention/c"]
    last = {"attention": {"a": "hang"}}
    row = _find_row(fake(last, rows=rows, folder=tmp_path / "other"), "attention")
    assert (row["status"], row["ok"]) == ("failed", False)


def test_programs_without_time_have_not_failed(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_count_jobs", lambda: 1)
    monkeypatch.setenv("FAKE_LIMITS", '{"seconds": 4}')
    cases = {"steps": {"a": "compile", "b": "slow-compiler", "c": "compile"}}
    row = _find_row(fake(cases), "steps")
    assert (row["status"], row["ok"], row["cases"]) == ("unfinished", True, [])
    compiled = (tmp_path / "compiled").read_text().split()
    assert compiled == ["compile", "slow-compiler"]  # none is started after the time
    row = _find_row(fake(cases), "steps")  # now it had the whole time
    assert row["status"] == "unfinished"
    row = _find_row(fake(cases), "steps")
    assert [case["notes"] == [] for case in row["cases"]] == [True, False, True]
    assert "not compiled within" in row["cases"][1]["notes"][0]


def test_a_user_error_is_printed_as_its_own_text(fake: Any) -> None:
    row = _find_row(fake({"attention": {"a": "refuse"}}), "attention")
    assert row["cases"][0]["reason"] == str(UserError("a planted refusal", "here", "do something"))


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


def test_the_results_of_other_code_or_flags_are_not_continued(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    fake({"attention": {"a": "pass"}})
    with monkeypatch.context() as changed:
        changed.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=false")
        with errors.expect_user_error(errors.DIFFERS, names="xla_flags"):
            fake({"attention": {"a": "pass"}})
    monkeypatch.setattr(runner, "hash_package", lambda: "other")
    with errors.expect_user_error(errors.DIFFERS, names="rosetta"):
        fake({"attention": {"a": "pass"}})


def test_work_without_results_is_not_continued(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LIMITS", '{"case_seconds": 60}')
    monkeypatch.setattr(runner, "_LEAST_SECONDS", 0.0)
    cases = {"attention": {"a": "pass", "b": "block"}}
    fake(cases, seconds=6.0)
    assert (tmp_path / "out" / runner.WORK_FOLDER / "attention.json").exists()
    (tmp_path / "out" / acceptance.RESULT_FILE).unlink()
    (tmp_path / "out" / acceptance.AUTOTUNE_FILE).write_text("version: 3\n")
    (tmp_path / "unblocked").touch()
    document = fake(cases)
    assert _list_begun(tmp_path).count("attention/a") == 2
    assert document["autotune_results"] is None


def test_two_calls_in_a_folder_are_excluded(fake: Any, tmp_path: Path) -> None:
    with (
        runner._lock_folder(tmp_path / "out"),
        errors.expect_user_error(errors.IN_USE, where=str(tmp_path / "out"), remedy="--folder"),
    ):
        fake({"attention": {"a": "pass"}})
    fake({"attention": {"a": "pass"}})


def test_another_plan_is_compared_anew(fake: Any, tmp_path: Path) -> None:
    plans = []
    for name, card in (("a", "h100"), ("b", "h200")):
        plan = tmp_path / f"{name}.json"
        figures = {"time": 1.0, "peak": 1e9}
        plan.write_text(json.dumps({"plan": f"t5x --card {card}", "figures": figures}))
        plans.append(str(plan))
    cases = {"attention": {"a": "pass"}, "full": {"a": "pass"}}
    for words, count in ((), 1), (plans[:1], 2), (plans[:1], 2), (plans[1:], 3), ((), 3):
        document = fake(cases, plans=tuple(words))
        assert _list_begun(tmp_path).count("full/a") == count
    assert len(_find_row(document, "full")["plans"]) == 1
    assert _list_begun(tmp_path).count("attention/a") == 1


@pytest.mark.parametrize(
    "rows",
    [
        3,
        [{"row": "full", "status": "measured"}],
        [{"row": "full", "cases": [{}]}],
        [{"row": "full", "cases": [3]}],
    ],
    ids=["no-rows", "no-cases", "half-a-case", "no-case"],
)
def test_a_damaged_file_is_refused(fake: Any, tmp_path: Path, rows: Any) -> None:
    (tmp_path / "out").mkdir()
    row = {"status": "measured", "seconds": 1, "ok": True}
    if isinstance(rows, list) and "cases" in rows[0]:
        rows = [row | rows[0]]
    document = {"schema": acceptance.SCHEMA, "machine": {}, "tiny": False, "rows": rows}
    (tmp_path / "out" / acceptance.RESULT_FILE).write_text(json.dumps(document))
    with errors.expect_user_error(errors.DAMAGED, where=acceptance.RESULT_FILE):
        fake({"attention": {"a": "pass"}})
    assert not (tmp_path / "begun").exists()


def test_what_autotuning_chose_is_merged(fake: Any, tmp_path: Path) -> None:
    fake({"attention": {"a": "pass"}})
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
