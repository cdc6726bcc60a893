from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rosetta.accept import records, report
from rosetta.accept.records import Check, Measurement, Number
from rosetta.core import acceptance


def _case(status: str = acceptance.MEASURED, *, ok: bool = True) -> dict[str, Any]:
    check = Check("c", 1.0 if ok else 3.0, 2.0)
    result = records.make_case_result("a", Measurement((), (check,)), 1.0)
    return {**asdict(result), "status": status, "reason": "r"}


@pytest.mark.parametrize(
    ("value", "ok"),
    [(1.0, True), (2.0, True), (2.1, False), (float("nan"), False), (float("-inf"), False)],
)
def test_a_check_passes_up_to_its_limit_and_not_without_a_number(value: float, ok: bool) -> None:
    assert Check("c", value, 2.0).ok is ok


def test_numbers_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    measurement = Measurement(
        (Number("n", float("nan"), "us"),), (Check("c", float("inf"), 1.0),), ("a note",)
    )
    result = records.make_case_result("a", measurement, 1.234)
    records.write_json(tmp_path / "file", asdict(result))
    read = json.loads((tmp_path / "file").read_text(encoding="utf-8"))
    assert read["numbers"][0]["value"] == "nan"
    assert read["checks"][0] == {"name": "c", "value": "inf", "limit": 1.0, "ok": False}


def test_a_limit_that_is_not_a_number_is_shown() -> None:
    measurement = Measurement((), (Check("c", float("inf"), float("nan")),))
    result = asdict(records.make_case_result("a", measurement, 1.0))
    row = records.summarize_row("r", [result], reason=None, finished=True, seconds=1.0)
    machine = dict.fromkeys(("gpu", "devices", "jax", "jaxlib", "python"), "")
    document = {"machine": machine, "rows": [asdict(row)], "missing": [], "autotune_results": None}
    assert "c is inf, and the limit is nan" in report.format_results(document, "FILE")


@pytest.mark.parametrize(
    ("cases", "reason", "finished", "status", "ok"),
    [
        pytest.param([_case()], None, True, "measured", True, id="measured"),
        pytest.param([_case(ok=False)], None, True, "measured", False, id="a-check-failed"),
        pytest.param([_case(), _case("failed")], None, True, "failed", False, id="a-case-failed"),
        pytest.param([_case("skipped")], None, True, "skipped", True, id="skipped"),
        pytest.param([_case(), _case("skipped")], None, True, "measured", True, id="half-skipped"),
        pytest.param([_case()], "killed", True, "failed", False, id="outside-of-a-case"),
        pytest.param([_case()], "no time", False, "unfinished", True, id="no-time"),
        pytest.param([_case("failed")], "no time", False, "unfinished", False, id="failed-early"),
    ],
)
def test_the_status_of_a_row_follows_from_its_cases(
    cases: list[dict[str, Any]], reason: str | None, finished: bool, status: str, ok: bool
) -> None:
    row = records.summarize_row("r", cases, reason=reason, finished=finished, seconds=1.0)
    assert (row.status, row.ok) == (status, ok)
    assert bool(row.reason) is (status != acceptance.MEASURED)
