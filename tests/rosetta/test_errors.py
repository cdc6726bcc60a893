from __future__ import annotations

from rosetta.errors import UserError


def test_one_line_says_what_where_and_what_to_do() -> None:
    error = UserError("is no folder", "/data", "make it")
    assert str(error) == "/data: is no folder; make it"
    assert error.as_json() == {"what": "is no folder", "where": "/data", "do": "make it"}
