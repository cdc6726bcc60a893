from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.release.status_page import reports
from rosetta.core.errors import UserError
from tests.support import errors, nightly_report
from tests.support.web_server import serve_answers


def test_newest_first_and_one_a_day() -> None:
    found = reports.sort_newest_first(
        [
            nightly_report.make_report("2026-11-28", builder="old"),
            nightly_report.make_report("2026-11-27"),
            nightly_report.make_report("2026-11-28"),
        ]
    )
    assert [(each["date"], each["builder"]) for each in found] == [
        ("2026-11-28", "0.1.0"),
        ("2026-11-27", "0.1.0"),
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema": 2}, "schema"),
        ({"date": "28.11."}, "date"),
        ({"published": [{}]}, "published.0"),
        ({"images": 3}, "images"),
    ],
)
def test_a_document_that_is_none_is_named(
    tmp_path: Path, change: dict[str, object], word: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**nightly_report.make_report(), **change}))
    with errors.expect_user_error(errors.INVALID, where=tmp_path / "a.json", names=word):
        reports.read_folders([tmp_path])


def test_a_file_that_cannot_be_read_and_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    with errors.expect_user_error(errors.INVALID, where="a.json", names="JSON"):
        reports.read_folders([tmp_path])
    with errors.expect_user_error(errors.MISSING, where="none", remedy="reports"):
        reports.read_folders([tmp_path / "none"])


def test_the_page_of_last_night_is_read_and_none_is_no_error() -> None:
    with serve_answers(
        {
            "/x/reports.json": (
                200,
                json.dumps({"schema": 1, "reports": [nightly_report.make_report()]}),
            )
        }
    ) as address:
        assert [each["date"] for each in reports.read_earlier_page(f"{address}/x/")] == [
            "2026-11-28"
        ]
        assert reports.read_earlier_page(f"{address}/none") == []


@pytest.mark.parametrize(
    "answer",
    [
        (500, ""),
        (200, "no JSON"),
        (200, "[]"),
        (200, '{"schema": 1, "reports": [{}]}'),
        (200, '{"schema": 2, "reports": []}'),
    ],
)
def test_a_page_that_answers_otherwise_is_an_error_and_not_a_fresh_start(
    answer: tuple[int, str],
) -> None:
    with serve_answers({"/reports.json": answer}) as address, pytest.raises(UserError):
        reports.read_earlier_page(address)


def test_a_page_that_is_cut_off_is_an_error_of_one_line() -> None:
    whole = json.dumps({"schema": 1, "reports": [nightly_report.make_report()]})
    with (
        serve_answers({"/reports.json": (200, whole)}, missing=5) as address,
        errors.expect_user_error(errors.UNREACHABLE, where="reports.json"),
    ):
        reports.read_earlier_page(address)


@pytest.mark.parametrize("address", ["http://example.com/", "file:///etc", "example.com"])
def test_only_https_is_asked(address: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="--earlier"):
        reports.read_earlier_page(address)
