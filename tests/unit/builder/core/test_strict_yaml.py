"""YAML that is not plain data is refused with its line and key."""

from __future__ import annotations

import pytest
import yaml

from builder.core import strict_yaml
from tests.support import errors


def test_plain_data_and_its_lines() -> None:
    document = strict_yaml.load('a: 1\nb:\n  - {c: "1.0", d: true}\n  - null\n', "f.yaml")
    assert document.data == {"a": 1, "b": [{"c": "1.0", "d": True}, None]}
    assert document.place(("b", 0, "c")) == "f.yaml:3: b.0.c"
    assert document.place(("b", 0, "unknown")) == "f.yaml:3: b.0.unknown"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\na: 2\n", 2, "duplicate key 'a'"),
        ("a: {x: 1, x: 2}\n", 1, "duplicate key 'x'"),
        ("a: &x 1\nb: *x\n", 1, "anchors"),
        ("a:\n  <<: {b: 1}\n", 2, "merge"),
        ("v: 3.10\n", 1, "float"),
        ("v: 1e3\nw: .inf\n", 2, "float"),
        ("a: yes\n", 1, "bool"),
        ("a: 2026-01-01\n", 1, "timestamp"),
        ("a: 0x10\n", 1, "int"),
        ("a: 010\n", 1, "int"),
        ("a: !!python/object:os.system x\n", 1, "python/object"),
        ("a: !!set {b, c}\n", 1, "not allowed"),
        ("1: a\n", 1, "in quotes"),
        ("? [a, b]\n: c\n", 1, "in quotes"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: \t- 1\n  b\n", 1, "not valid YAML"),
    ],
)
def test_refused(text: str, line: int, what: str) -> None:
    with errors.refused(errors.INVALID, where=f"f.yaml:{line}") as caught:
        strict_yaml.load(text, "f.yaml")
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["", "a: 1\n---\nb: 2\n"])
def test_exactly_one_document(text: str) -> None:
    with errors.refused(errors.INVALID, where="f.yaml"):
        strict_yaml.load(text, "f.yaml")


def test_control_characters_are_an_error_not_a_traceback() -> None:
    with errors.refused(errors.INVALID, where="f.yaml"):
        strict_yaml.load("a: \x00\n", "f.yaml")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: " + "{x: " * 100_000, "[" * 100_000 + "]" * 100_000, "- [" * 50_000]
)
def test_deep_nesting_is_refused_before_it_is_read(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML's time for open brackets grows with the square of their number."""
    monkeypatch.delattr(yaml, "parse")
    with errors.refused(errors.TOO_BIG, where="manifest.yaml:1"):
        strict_yaml.load(text, "manifest.yaml")
