"""Prompts from the command line, from files and from standard input."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rosetta.inference import prompts
from rosetta.inference.prompts import Prompt
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def _read(words: list[str], file: str | None = None) -> list[tuple[object, str]]:
    return [(prompt.id, prompt.text) for prompt in prompts.read_prompts(words, file)]


def test_prompts_of_the_command_line() -> None:
    assert _read(["a b", ""]) == [(1, "a b"), (2, "")]


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("eins\r\n\nzw\u00f6lf".encode())
    assert _read([], str(path)) == [(1, "eins"), (2, ""), (3, "zw\u00f6lf")]


def test_records_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"id": "q7", "prompt": "a"}\n\n{"inputs": "b"}\n{"text": "c", "idx": [1, 2]}\n \n'
    )
    assert _read([], str(path)) == [("q7", "a"), (3, "b"), ([1, 2], "c")]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\nb\n")))
    assert _read([], "-") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("name", "content", "kind", "where"),
    [
        ("empty.txt", b"", errors.MISSING, "empty.txt"),
        ("blank.jsonl", b"\n\n", errors.MISSING, "blank.jsonl"),
        ("absent.txt", None, errors.MISSING, "absent.txt"),
        ("latin.txt", b"gr\xfcn\n", errors.INVALID, "latin.txt"),
        ("broken.jsonl", b'{"prompt": "a"}\n{\n', errors.INVALID, "broken.jsonl:2"),
        ("number.jsonl", b'{"prompt": 5}\n', errors.INVALID, "number.jsonl:1"),
        ("other.jsonl", b'{"question": "a"}\n', errors.INVALID, "other.jsonl:1"),
    ],
)
def test_wrong_files(
    name: str,
    content: bytes | None,
    kind: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with errors.expect_user_error(kind, where=where):
        prompts.read_prompts([], name)


def test_prompts_from_nowhere_and_from_two_places() -> None:
    with errors.expect_user_error(errors.MISSING, where="PROMPT"):
        prompts.read_prompts([], None)
    with errors.expect_user_error(errors.CONFLICT, where="--file f"):
        prompts.read_prompts(["a"], "f")


def test_ids() -> None:
    assert prompts.parse_ids(Prompt(1, " 3  0 5 ", "prompt 1"), 6) == [3, 0, 5]
    for text in ("6", "-1", "x"):
        with errors.expect_user_error(errors.INVALID, where="prompt 1", names=text):
            prompts.parse_ids(Prompt(1, text, "prompt 1"), 6)


def test_lengths() -> None:
    prompt = Prompt(1, "a", "prompt 1")
    prompts.check_length(prompt, 12, 4, 16)
    prompts.check_length(prompt, 15, None, 16)
    for tokens, wanted in ((16, None), (13, 4)):
        with errors.expect_user_error(errors.TOO_BIG, where="prompt 1"):
            prompts.check_length(prompt, tokens, wanted, 16)
    with errors.expect_user_error(errors.INVALID, where="prompt 1"):
        prompts.check_length(prompt, 0, None, 16)
