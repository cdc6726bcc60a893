"""Records in the cache are taken only as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.core.cache_records import read_stamp, write_stamp


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_stamp(tmp_path / "a.json", {"tree": "1" * 40, "absent": []})
    assert read_stamp(tmp_path / "a.json") == {"tree": "1" * 40, "absent": []}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"tree": "1"}', '{"sha256": "0", "content": {}}', "[" * 100_000],
)
def test_what_is_damaged_or_of_an_earlier_version_is_not_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    assert read_stamp(tmp_path / "a.json") is None


def test_an_edited_record_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_stamp(path, {"tree": "1" * 40})
    document = json.loads(path.read_text())
    document["content"]["tree"] = "2" * 40
    path.write_text(json.dumps(document))
    assert read_stamp(path) is None
