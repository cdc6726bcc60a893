from __future__ import annotations

from typing import Any

import pytest
import yaml

from rosetta.core import strict_yaml
from tests.support import errors


def test_every_path_has_its_line() -> None:
    found = strict_yaml.load("a: 1\nb:\n  c: [x, y]\n  d: true\n", "f.yaml")
    assert found.data == {"a": 1, "b": {"c": ["x", "y"], "d": True}}
    assert (found.place(("b", "d")), found.place(("nowhere",))) == ("f.yaml:4", "f.yaml:1")


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("a: 1\na: 2\n", errors.INVALID, {"where": "f.yaml:2: a", "value": "a"}),
        ("a:\n  b: 1\n  b: 2\n", errors.INVALID, {"where": "f.yaml:3: a.b", "value": "b"}),
        ("a: &x 1\nb: *x\n", errors.INVALID, {"where": "f.yaml:1", "names": "anchors"}),
        ("a: 1.5\n", errors.INVALID, {"where": "f.yaml:1: a", "value": "1.5"}),
        (
            "a: yes\n",
            errors.INVALID,
            {"where": "f.yaml:1: a", "value": "yes"},
        ),
        (
            "a: 017\n",
            errors.INVALID,
            {"where": "f.yaml:1: a", "value": "017"},
        ),
        ("a: 2026-11-28\n", errors.INVALID, {"where": "f.yaml:1: a", "value": "2026-11-28"}),
        (
            "1: a\n",
            errors.INVALID,
            {"where": "f.yaml:1", "remedy": "<<"},
        ),
        (
            "a: !!python/name:os.system x\n",
            errors.INVALID,
            {"where": "f.yaml:1: a", "value": "x", "names": "python/name:os.system"},
        ),
        ("a: 1\n---\nb: 2\n", errors.INVALID, {"where": "f.yaml", "value": 2, "names": "YAML"}),
    ],
)
def test_what_is_not_plain_data_is_one_line(text: str, kind: str, facts: dict[str, Any]) -> None:
    with errors.refused(kind, **facts) as error:
        strict_yaml.load(text, "f.yaml")
    assert error.value.where == facts["where"]


def test_an_empty_file_has_no_data() -> None:
    assert strict_yaml.load("# nothing yet\n", "f.yaml").data is None


@pytest.mark.parametrize("text", ["a: {b: 1\n", "a: \x07\n", "a: b: c\n", "\ta: 1\n", "[" * 500])
@pytest.mark.parametrize("loader", [yaml.SafeLoader, strict_yaml._LOADER])
def test_broken_syntax_is_one_line(
    text: str, loader: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_yaml, "_LOADER", loader)
    with errors.refused(errors.INVALID, where="f.yaml", names="YAML", remedy="syntax") as error:
        strict_yaml.load(text, "f.yaml")
    assert "\n" not in str(error.value)


def test_deep_nesting_is_one_line() -> None:
    with errors.refused(errors.TOO_BIG, where="f.yaml:1"):
        strict_yaml.load("[" * 50 + "]" * 50, "f.yaml")
