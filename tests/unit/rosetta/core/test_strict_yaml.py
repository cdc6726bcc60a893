from __future__ import annotations

import pytest
import yaml

from rosetta.core import strict_yaml
from rosetta.core.errors import UserError


def test_every_path_has_its_line() -> None:
    found = strict_yaml.load("a: 1\nb:\n  c: [x, y]\n  d: true\n", "f.yaml")
    assert found.data == {"a": 1, "b": {"c": ["x", "y"], "d": True}}
    assert (found.place(("b", "d")), found.place(("nowhere",))) == ("f.yaml:4", "f.yaml:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f.yaml:2: a: it is there twice; keep one of them"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: a.b: it is there twice; keep one of them"),
        ("a: &x 1\nb: *x\n", "f.yaml:1: anchors and aliases are not allowed; write the value out"),
        ("a: 1.5\n", "f.yaml:1: a: '1.5' is read as a float; put it in quotes"),
        (
            "a: yes\n",
            "f.yaml:1: a: 'yes' is read as a bool; write true or false, or put it in quotes",
        ),
        (
            "a: 017\n",
            "f.yaml:1: a: '017' is read as a int; write a plain decimal number, or put it in quotes",
        ),
        ("a: 2026-11-28\n", "f.yaml:1: a: '2026-11-28' is read as a timestamp; put it in quotes"),
        (
            "1: a\n",
            "f.yaml:1: a key is no string; put it in quotes; merge keys (<<) are written out",
        ),
        (
            "a: !!python/name:os.system x\n",
            "f.yaml:1: a: 'x' is read as a python/name:os.system; put it in quotes",
        ),
        ("a: 1\n---\nb: 2\n", "f.yaml: 2 YAML documents where one belongs; keep exactly one"),
    ],
)
def test_what_is_not_plain_data_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        strict_yaml.load(text, "f.yaml")
    assert str(error.value) == message


def test_an_empty_file_has_no_data() -> None:
    assert strict_yaml.load("# nothing yet\n", "f.yaml").data is None


@pytest.mark.parametrize("text", ["a: {b: 1\n", "a: \x07\n", "a: b: c\n", "\ta: 1\n", "[" * 500])
@pytest.mark.parametrize("loader", [yaml.SafeLoader, strict_yaml._LOADER])
def test_broken_syntax_is_one_line(
    text: str, loader: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_yaml, "_LOADER", loader)
    with pytest.raises(
        UserError, match=r"f\.yaml(:\d)?: not valid YAML: .*; mend the syntax"
    ) as error:
        strict_yaml.load(text, "f.yaml")
    assert "\n" not in str(error.value)


def test_deep_nesting_is_one_line() -> None:
    with pytest.raises(
        UserError, match=r"f\.yaml:1: a: it is nested too deeply|f\.yaml:1: it is nested too deeply"
    ):
        strict_yaml.load("[" * 50 + "]" * 50, "f.yaml")
