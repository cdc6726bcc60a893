"""Lines of text as records for inference."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rosetta.launch import input_lines
from tests.support import errors


def _parse(lines: input_lines.InputLines) -> list[tuple[int, str]]:
    records = [json.loads(line) for line in lines.records.splitlines()]
    return [(record["idx"], record["inputs"]) for record in records]


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes("ein\u2028s\r\n\nzw\u00f6lf".encode())
    lines = input_lines.read_lines(str(tmp_path / "in.txt"), str(tmp_path / "out"))
    assert _parse(lines) == [(1, "ein\u2028s"), (2, ""), (3, "zw\u00f6lf")]
    assert not lines.file.exists()
    lines.write()
    assert lines.file.read_text() == lines.records
    assert lines.data == f"jsonl:{lines.file}"
    assert lines.file.parent == tmp_path / "out"


def test_the_field_of_the_lines(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a")
    lines = input_lines.read_lines(str(tmp_path / "in.txt"), str(tmp_path), "text")
    assert json.loads(lines.records) == {"idx": 1, "text": "a"}


def test_other_lines_have_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for text in (b"a\nb\n", b"a\nc\n", b"a\nb"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        files.append(input_lines.read_lines("-", str(tmp_path)).file)
    assert files[0] == files[2] != files[1]


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", errors.MISSING), (None, errors.MISSING), (b"gr\xfcn", errors.INVALID)],
)
def test_wrong_files(content: bytes | None, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    if content is not None:
        path.write_bytes(content)
    with errors.expect_user_error(kind, where=f"INPUTS={path}"):
        input_lines.read_lines(str(path), str(tmp_path))


def test_answers_in_an_object_store(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a")
    with errors.expect_user_error(errors.UNSUPPORTED, where="OUTPUT_DIR=gs://b/out"):
        input_lines.read_lines(str(tmp_path / "in.txt"), "gs://b/out")
