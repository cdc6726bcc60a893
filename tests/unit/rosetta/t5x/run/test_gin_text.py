"""Gin's literals and statements; test_gin_comparison holds them equal to gin's own."""

from __future__ import annotations

import ast
import io

import pytest

from rosetta.t5x.run import gin_text
from rosetta.t5x.run.gin_text import Binding, Import, Include, Macro, Reference
from tests.support import required_modules

VALUES = [
    "plain",
    'with "quotes"',
    "back\\slash",
    "new\nline",
    "'",
    "ü\x85\u2028\x7f",
    "%M",
    {"train": "/a b"},
    (1, 1, 1, 2),
    (),
    None,
    20,
    -3,
    0.5,
    1e-300,
    True,
    {"inputs": 1, "targets": {"x": None}},
]


@pytest.mark.parametrize("value", VALUES)
def test_a_gin_literal_means_the_value(value: object) -> None:
    text = f"A = {gin_text.format_literal(value)}"
    (binding,) = gin_text.parse_statements(io.StringIO(text).readline)
    assert isinstance(binding, Binding)
    assert binding.value == value == ast.literal_eval(gin_text.format_literal(value))


@pytest.mark.parametrize("value", VALUES)
def test_gin_reads_a_literal_as_the_value(value: object) -> None:
    required_modules.need_modules("gin")
    from gin import config

    assert config.parse_value(gin_text.format_literal(value)) == value


def test_every_kind_of_statement() -> None:
    text = """
from __gin__ import dynamic_registration
import a.b
from a import b as c  # an import = "x"
include 'x.gin'  # include 'y.gin'
A = 1  # one
train/c.f:
  # a comment
  x = {'inputs': [1,  # one
    %A], 'targets': @train/c.g()}

  y = 'a' \\
    'b'
c.f.z = '''
A = 2
include 'z.gin'
'''
"""
    container = "{'inputs': [1,  # one\n    %A], 'targets': @train/c.g()}"
    assert list(gin_text.parse_statements(io.StringIO(text).readline)) == [
        Import("dynamic_registration", *["__gin__.dynamic_registration"] * 3),
        Import("a", "a", "a.b", "a"),
        Import("c", "a.b", "a.b", "a.c"),
        Include("x.gin", 5),
        Binding("", "A", "", 1, "1", 6),
        Binding(
            "train",
            "c.f",
            "x",
            {"inputs": [1, Macro("A")], "targets": Reference("c.g", scope="train")},
            container,
            9,
        ),
        Binding("train", "c.f", "y", "ab", "'a' \\\n    'b'", 12),
        Binding(
            "", "c.f", "z", "\nA = 2\ninclude 'z.gin'\n", "'''\nA = 2\ninclude 'z.gin'\n'''", 14
        ),
    ]


@pytest.mark.parametrize("text", ["A = abc", "A = 1 + 2", "A = {1, 2}", "A = 'x", "  a: 1", "A"])
def test_what_gin_refuses_is_refused(text: str) -> None:
    with pytest.raises(gin_text.NotGinError):
        list(gin_text.parse_statements(io.StringIO(text).readline))
