from __future__ import annotations

import json

import pytest

from rosetta.data import json_lines
from rosetta.data.bad_records import RecordFault

OBJECTS = {
    "plain": b'{"text": "one"}',
    "space": b' \t{"text": "one"} \r',
    "escapes": rb'{"text": "\u00e9 \ud83d\ude00 \"\\ \ud800"}',
    "utf-8": '{"text": "grüß 水"}'.encode(),
    "utf-16": '{"text": "grüß"}'.encode("utf-16"),
    "mark": b"\xef\xbb\xbf" + b'{"text": "one"}',
    "half-character": b'{"text": "\xed\xa0\x80"}',
    "numbers": b'{"a": NaN, "b": -Infinity, "c": 1e400, "d": 123456789012345678901234567890}',
    "twice": b'{"text": "one", "text": "two"}',
}
OTHERS = {
    "rest": b'{"text": "one"} {}',
    "other-space": b'{"text": "one"}\x0b',
    "control": b'{"text": "a\x01b"}',
    "cut-short": b'{"text": "one',
    "not-utf-8": b'{"text": "\xff"}',
    "array": b'[{"text": "one"}]',
    "number": b"7",
    "nothing": b"",
    "deep": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("line", OBJECTS.values(), ids=OBJECTS.keys())
def test_an_object_is_the_one_that_json_loads_returns(line: bytes) -> None:
    assert repr(json_lines.parse_object(line)) == repr(json.loads(line))


@pytest.mark.parametrize("line", OTHERS.values(), ids=OTHERS.keys())
def test_a_line_that_is_not_one_object_is_a_fault(line: bytes) -> None:
    with pytest.raises(RecordFault, match="JSON"):
        json_lines.parse_object(line)
