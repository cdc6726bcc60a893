from __future__ import annotations

import pytest

from rosetta.doctor.finding import BLOCKER, LEVELS, Finding, make_printable


def test_a_finding_as_line_and_as_object() -> None:
    found = Finding("shm", BLOCKER, "it is small", "/dev/shm", "make it larger", "there#1")
    assert str(found) == "/dev/shm: it is small; make it larger (there#1)"
    assert found.as_json() == {
        "id": "shm",
        "level": "blocker",
        "what": "it is small",
        "where": "/dev/shm",
        "do": "make it larger",
        "see": "there#1",
    }
    assert LEVELS == ("blocker", "warning", "note")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\x1b[31m\x00", "a?b?[31m?"),
        ("\u202eevil", "?evil"),
        (
            "see https://me:pa55@host/x and gs://bucket/y",
            "see https://...@host/x and gs://bucket/y",
        ),
        ("http://me:pa/55@w0rd@host/x", "http://...@host/x"),
        ("x" * 1000, "x" * 297 + "..."),
    ],
)
def test_foreign_text_is_made_printable(text: str, shown: str) -> None:
    assert make_printable(text) == shown
    found = Finding("x", BLOCKER, text, text, text, text)
    assert set(found.as_json().values()) == {"x", BLOCKER, shown}
