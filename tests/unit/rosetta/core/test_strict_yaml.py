"""YAML that is not plain data is refused with its line and key, by both parsers of PyYAML."""

from __future__ import annotations

import pytest
import yaml

from rosetta.core import strict_yaml
from tests.support import errors


@pytest.fixture(autouse=True, params=[yaml.SafeLoader, strict_yaml._LOADER])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "_LOADER", request.param)


def test_plain_data_and_its_lines() -> None:
    document = strict_yaml.parse_document('a: 1\nb:\n  - {c: "1.0", d: true}\n  - null\n', "f.yaml")
    assert document.data == {"a": 1, "b": [{"c": "1.0", "d": True}, None]}
    assert document.format_place(("b", 0, "c")) == "f.yaml:3: b.0.c"
    assert document.format_place(("b", 0, "unknown")) == "f.yaml:3: b.0.unknown"
    assert document.format_position(("b", 0, "c")) == "f.yaml:3"
    assert document.format_position(("nowhere",)) == "f.yaml:1"
    error = document.make_error("is not a number", ("a",), "write a number", value=1)
    assert (error.where, error.kind, error.value) == ("f.yaml:1: a", errors.INVALID, 1)


@pytest.mark.parametrize(
    ("text", "where", "names", "value"),
    [
        ("a: 1\na: 2\n", "f.yaml:2: a", "duplicate", "a"),
        ("a: {x: 1, x: 2}\n", "f.yaml:1: a.x", "duplicate", "x"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: a.b", "duplicate", "b"),
        ("a: &x 1\nb: *x\n", "f.yaml:1", "anchors", None),
        ("a:\n  <<: {b: 1}\n", "f.yaml:2: a", "<<", None),
        ("v: 3.10\n", "f.yaml:1: v", "float", "3.10"),
        ("v: 1e3\nw: .inf\n", "f.yaml:2: w", "float", ".inf"),
        ("a: yes\n", "f.yaml:1: a", "bool", "yes"),
        ("a: Null\n", "f.yaml:1: a", "null", "Null"),
        ("a: 2026-01-01\n", "f.yaml:1: a", "timestamp", "2026-01-01"),
        ("a: [x, 1.5]\n", "f.yaml:1: a.1", "float", "1.5"),
        ("a: 0x10\n", "f.yaml:1: a", "int", "0x10"),
        ("a: 010\n", "f.yaml:1: a", "int", "010"),
        ("a: !!python/object:os.system x\n", "f.yaml:1: a", "python/object", "x"),
        ("a: !!set {b, c}\n", "f.yaml:1: a", "tag", None),
        ("1: a\n", "f.yaml:1", "string", None),
        ("? [a, b]\n: c\n", "f.yaml:1", "string", None),
        ("a: [1\nb: 2\n", "f.yaml:2", "YAML", None),
        ("a: {b: 1\n", "f.yaml:2", "YAML", None),
        ("a: b: c\n", "f.yaml:1", "YAML", None),
        ("\ta: 1\n", "f.yaml:1", "YAML", None),
        ("a: \t- 1\n  b\n", "f.yaml:1", "YAML", None),
        ("a: \x00\n", "f.yaml", "YAML", None),
        ("a: \x07\n", "f.yaml", "YAML", None),
        ("", "f.yaml", "YAML", 0),
        ("a: 1\n---\nb: 2\n", "f.yaml", "YAML", 2),
    ],
)
def test_values_that_are_not_plain_data_are_refused(
    text: str, where: str, names: str, value: str | int | None
) -> None:
    with errors.expect_user_error(errors.INVALID, value=value, names=names) as error:
        strict_yaml.parse_document(text, "f.yaml")
    assert error.value.where == where
    assert "\n" not in str(error.value)


def test_an_empty_file_may_be_allowed() -> None:
    document = strict_yaml.parse_document("# nothing yet\n", "f.yaml", may_be_empty=True)
    assert document.data is None
    assert document.format_position(()) == "f.yaml:1"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: " + "{x: " * 100_000, "[" * 100_000 + "]" * 100_000, "- [" * 50_000]
)
def test_deep_nesting_is_refused_before_pyyaml_reads_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyYAML's time for open brackets grows with the square of their number."""
    monkeypatch.delattr(yaml, "parse")
    monkeypatch.delattr(yaml, "compose_all")
    with errors.expect_user_error(errors.TOO_BIG, where="manifest.yaml:1"):
        strict_yaml.parse_document(text, "manifest.yaml")


@pytest.mark.parametrize("text", ["[" * 50 + "]" * 50, "a: " + "{x: " * 50 + "}" * 50])
def test_deep_nesting_is_refused_with_its_line(text: str) -> None:
    with errors.expect_user_error(errors.TOO_BIG, where="f.yaml:1"):
        strict_yaml.parse_document(text, "f.yaml")
