from __future__ import annotations

import sys

import pytest
import yaml

from rosetta.core import yaml_output
from tests.support import errors
from tests.unit.rosetta.launch.test_hostile import HOSTILE


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "0o7",
        "1_000",
        "on",
        "Yes",
        "n",
        "null",
        "NaN",
        "2026-11-28",
        "1:30",
        "~",
        "-",
        "",
        "@x",
        "a: b",
        "#a",
        "é",
    ],
)
def test_ambiguous_texts_are_quoted(text: str) -> None:
    written = yaml_output.format_yaml({"name": text})
    assert written.startswith('name: "')
    assert yaml.safe_load(written) == {"name": text}


def test_plain_words_and_numbers_are_not_quoted() -> None:
    assert (
        yaml_output.format_yaml({"kind": "JobSet", "count": 8, "on": True})
        == 'kind: JobSet\ncount: 8\n"on": true\n'
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_can_be_read_back(text: str) -> None:
    assert yaml.safe_load(yaml_output.format_yaml({"a": [{"b": text}]})) == {"a": [{"b": text}]}


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with errors.expect_user_error(errors.MISSING, where="YAML", names="PyYAML"):
        yaml_output.format_yaml({})
