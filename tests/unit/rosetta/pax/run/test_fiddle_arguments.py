from __future__ import annotations

import pytest

from rosetta.pax.run import fiddle_arguments
from tests.support import errors


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("float32", '"float32"'),
        ('"float32"', '"float32"'),
        ("'a'", '"a"'),
        ("[1, 8, 1]", "[1,8,1]"),
        ("1e-4", "1e-4"),
        ("True", "True"),
        ("None", "None"),
        ('say "hi"', '"say \\"hi\\""'),
    ],
)
def test_what_is_no_literal_is_a_string(text: str, literal: str) -> None:
    assert fiddle_arguments.literal(text) == literal
    assert fiddle_arguments.value(literal) == fiddle_arguments.value(text)


def test_words_may_have_spaces_and_the_last_of_a_name_wins() -> None:
    text = '--fdl.ICI_MESH_SHAPE=[1, 8, 1] --eval_on_test\n  --mode eval --fdl.PRECISE="a b"  --x=a b --fdl.ICI_MESH_SHAPE=[8,1,1]'
    assert fiddle_arguments.split(text) == (
        {"ICI_MESH_SHAPE": "[8,1,1]", "PRECISE": '"a b"'},
        ["--eval_on_test", "--mode", "eval", "--x=a b"],
    )


def test_nothing_is_nothing() -> None:
    assert fiddle_arguments.split("  ") == ({}, [])


@pytest.mark.parametrize(
    "text", ["NUM_LAYERS=2", "--fdl.NUM_LAYERS", "stray --fdl.A=1", "--fld.NUM_LAYERS=2"]
)
def test_other_words_are_refused(text: str) -> None:
    with errors.refused(
        errors.INVALID, where="ADDITIONAL_ARGS, ROSETTA_FDL", remedy="--fdl.NAME=VALUE"
    ):
        fiddle_arguments.split(text)
