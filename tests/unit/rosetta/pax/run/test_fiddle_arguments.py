"""Words such as --fdl.NAME=VALUE, as Fiddle reads them."""

from __future__ import annotations

import ast
from random import Random

import pytest

from rosetta.core.not_known import NOT_KNOWN
from rosetta.pax.run import fiddle_arguments
from tests.support import errors, required_modules

LITERALS = [
    ("float32", '"float32"'),
    ('"float32"', '"float32"'),
    ("'a'", '"a"'),
    ("[1, 8, 1]", "[1,8,1]"),
    ("(1,)", "(1,)"),
    ("['a b', 1]", '["a b",1]'),
    ("[[1, 2], ()]", "[[1,2],()]"),
    ("{'text:/a b': 0.5}", "{'text:/a b': 0.5}"),
    ("1e-4", "1e-4"),
    ("-3", "-3"),
    ("0x10", "0x10"),
    ("1_000", "1_000"),
    ("True", "True"),
    ("true", "True"),
    ("FALSE", "False"),
    ("None", "None"),
    ('say "hi"', '"say \\"hi\\""'),
    ("a\\b", '"a\\\\b"'),
    ("a\tb", '"a\\tb"'),
    ("{[]: 1}", '"{[]: 1}"'),
    ("'ü'", '"ü"'),
    ("b'x'", "b'x'"),
    ('"a" "b"', '"ab"'),
    ("gs://bucket/a=b", '"gs://bucket/a=b"'),
    ("", '""'),
]


@pytest.mark.parametrize(("text", "literal"), LITERALS)
def test_what_is_not_a_literal_is_a_string(text: str, literal: str) -> None:
    assert fiddle_arguments.to_literal(text) == literal
    assert fiddle_arguments.parse_literal(literal) == fiddle_arguments.parse_literal(text)
    assert ast.literal_eval(literal) == fiddle_arguments.parse_literal(text)


def _random_literal(random: Random, depth: int = 2) -> str:
    kind = random.randrange(9 if depth else 5)
    if kind == 0:
        return random.choice(
            ("0", "-7", "3.5", "1e-5", "0b11", "1_0", "2j", "True", "None", "false")
        )
    if kind < 5:
        text = "".join(random.choice("ab '\"\\[]{}#=,-é\t") for _ in range(random.randrange(6)))
        return random.choice((repr(text), text))
    items = [_random_literal(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 5:
        return "{" + ", ".join(f"{number}: {item}" for number, item in enumerate(items)) + "}"
    opening, closing = random.choice(("[]", "()"))
    return f"{opening}{random.choice((', ', ',')).join(items)}{closing}"


@pytest.mark.parametrize("seed", range(0, 1000, 100))
def test_fiddle_reads_a_literal_as_it_is_read_here(seed: int) -> None:
    required_modules.need_modules("fiddle")
    for number in range(seed, seed + 100):
        if number < len(LITERALS):
            _compare_with_fiddle(LITERALS[number][0])
        else:
            _compare_with_fiddle(_random_literal(Random(number)))  # noqa: S311 (not secret)


def _compare_with_fiddle(text: str) -> None:
    from fiddle._src.absl_flags import utils

    read = fiddle_arguments.parse_literal(text.strip())
    assert repr(utils.parse_value(fiddle_arguments.to_literal(text), "NAME")) == repr(read)
    try:
        real = utils.parse_value(text.strip(), "NAME")
    except ValueError:
        assert read == text.strip(), "a string without quotes, which Fiddle refuses"
    else:
        assert repr(real) == repr(read)


def test_words_may_have_spaces_and_the_last_of_a_name_wins() -> None:
    text = '--fdl.ICI_MESH_SHAPE=[1, 8, 1] --eval_on_test\n  --mode eval --fdl.PRECISE="a b"  --x=a b --fdl.ICI_MESH_SHAPE=[8,1,1]'
    assert fiddle_arguments.split_arguments(text) == (
        {"PRECISE": '"a b"', "ICI_MESH_SHAPE": "[8,1,1]"},
        ["--eval_on_test", "--mode", "eval", "--x=a b"],
    )


@pytest.mark.parametrize(
    ("text", "hyper"),
    [
        ("--fdl.A='x --fdl.B=2' --fdl.C=3", {"A": '"x --fdl.B=2"', "C": "3"}),
        ('--fdl.A="x --b"', {"A": '"x --b"'}),
        ("--fdl.A=[1, 'a --b c', 2]", {"A": '[1,"a --b c",2]'}),
        ("--fdl.A='it --fdl.B=2", {"A": '"\'it"', "B": "2"}),
        ("--fdl_set=A=1 --fdl_set B=2", {"A": "1", "B": "2"}),
        ("--fdl.A.b=1 --fdl.C[0]=2 --fdl.D['x y']=3", {"A.b": "1", "C[0]": "2", "D['x y']": "3"}),
        ("--fdl.A[0]=1 --fdl.A=2 --fdl.A[0]=3", {"A": "2", "A[0]": "3"}),
    ],
)
def test_words_of_every_form(text: str, hyper: dict[str, str]) -> None:
    found, others = fiddle_arguments.split_arguments(text)
    assert list(found.items()) == list(hyper.items())
    assert others == []


def test_a_value_of_which_a_part_is_set_is_not_known() -> None:
    assert fiddle_arguments.parse_values({"A[0]": "1", "B": "2", "C.x": "3", "C": "4"}) == {
        "A": NOT_KNOWN,
        "B": 2,
        "C": 4,
    }


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--eval_on_test", "--mode=eval"], False),
        (["--experiment_x=1"], False),
        (["--exp=mine.Experiment"], True),
        (["--fdl_config", "mine.make"], True),
        (["--fdl=set:NUM_LAYERS=1"], True),
        (["--x", "-fdl_set=NUM_LAYERS=1"], True),
        (["--x=a -fiddler=f"], True),
        (["--flagfile=/a"], True),
    ],
)
def test_words_that_change_the_experiment(words: list[str], changes: bool) -> None:
    assert fiddle_arguments.changes_experiment(words) is changes


def test_an_empty_text_has_no_words() -> None:
    assert fiddle_arguments.split_arguments("  ") == ({}, [])


@pytest.mark.parametrize(
    "text", ["NUM_LAYERS=2", "--fdl.NUM_LAYERS", "stray --fdl.A=1", "--fld.NUM_LAYERS=2"]
)
def test_other_words_are_refused(text: str) -> None:
    with errors.expect_user_error(
        errors.INVALID, where="ADDITIONAL_ARGS, ROSETTA_FDL", remedy="--fdl.NAME=VALUE"
    ):
        fiddle_arguments.split_arguments(text)
