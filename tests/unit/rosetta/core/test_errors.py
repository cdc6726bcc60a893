from __future__ import annotations

from rosetta.core.errors import UserError
from rosetta.core.printable_text import escape


def test_the_line_has_the_problem_the_place_and_the_remedy() -> None:
    error = UserError("is no folder", "/data", "make it")
    assert str(error) == "/data: is no folder; make it"
    assert error.as_json() == {"what": "is no folder", "where": "/data", "do": "make it"}


def test_control_characters_are_escaped() -> None:
    """A terminal would obey them, and a line end would make two lines of one."""
    error = UserError("a\nb is no folder", "/data\x1b[31m", "make it\u202e")
    assert str(error) == "/data\\x1b[31m: a\\nb is no folder; make it\\u202e"
    assert error.as_json()["where"] == "/data\x1b[31m"
    assert escape("caf\u00e9 \u65e5\u3000\\n 'x'", keep="") == "caf\u00e9 \u65e5\u3000\\n 'x'"
    assert escape("\udcff\x9b\u2028", keep="") == "\\udcff\\x9b\\u2028"
