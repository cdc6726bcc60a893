from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.core import value_parsing
from tests.support import errors


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("TRUE", True),
        (" yes ", True),
        ("on", True),
        ("0", False),
        ("False", False),
        ("no", False),
        ("off", False),
    ],
)
def test_truth_values(text: str, value: bool) -> None:
    assert value_parsing.parse_truth_value("X", text) is value
    assert value_parsing.read_truth_value({"X": text}, "X", default=not value) is value


def test_an_unset_variable_has_its_default() -> None:
    assert value_parsing.read_truth_value({"X": ""}, "X", default=True)
    assert not value_parsing.read_truth_value({}, "X")


@pytest.mark.parametrize("text", ["", "2", "maybe"])
def test_other_words_are_refused(text: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="X", value=text, remedy=("0", "1")):
        value_parsing.parse_truth_value("X", text)


def test_choices() -> None:
    assert value_parsing.parse_choice("X", "a", ("a", "b")) == "a"
    with errors.expect_user_error(errors.INVALID, where="X", value="c"):
        value_parsing.parse_choice("X", "c", ("a", "b"))


def test_whole_numbers() -> None:
    assert value_parsing.parse_whole_number("X", "12") == 12
    for text in ("0", "-1", "1.5", "x", ""):
        with errors.expect_user_error(errors.INVALID, where="X", value=text, remedy="1"):
            value_parsing.parse_whole_number("X", text)


def test_common_divisors() -> None:
    assert value_parsing.suggest_common_divisors(12, 8) == "choose one of: 1, 2, 4"


@pytest.mark.parametrize(("text", "number"), [("3", 3.0), (".5", 0.5), ("2.", 2.0), ("0", 0.0)])
def test_decimal_numbers(text: str, number: float) -> None:
    assert value_parsing.parse_decimal(text) == number


@pytest.mark.parametrize(
    "text", ["", "٣", "²", "1_0", "0x10", "-1", "nan", "inf", "1e", "1,5", " 1", "1\n", "9" * 400]
)
def test_literals_of_python_are_not_decimal_numbers(text: str) -> None:
    assert value_parsing.parse_decimal(text) is None
    with errors.expect_user_error(errors.INVALID, where="X", value=text, remedy="X=1e-3"):
        value_parsing.parse_number("X", text, example="1e-3")


def test_exponents() -> None:
    assert value_parsing.parse_number("X", "1e-3") == 0.001
    assert value_parsing.parse_decimal("1e999") is None


def test_zero_is_valid_unless_above_zero_is_set() -> None:
    assert value_parsing.parse_number("X", "0") == 0
    with errors.expect_user_error(errors.INVALID, where="X", value="0.0"):
        value_parsing.parse_number("X", "0.0", above_zero=True)


@pytest.mark.parametrize(
    ("text", "items"),
    [("", []), (",", []), ("a", ["a"]), (" a , b", ["a", "b"]), (",a,,b,", ["a", "b"])],
)
def test_lists(text: str, items: list[str]) -> None:
    assert value_parsing.parse_list("X", text) == items
    with errors.expect_user_error(errors.INVALID, where="X", value="c", remedy="a, b"):
        value_parsing.parse_list("X", f"{text},c", choices=("a", "b"))


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("", None), ("-1", None), ("\u00b2", None), ("٣", None)],
)
def test_digits_of_other_programs(text: str, number: int | None) -> None:
    assert value_parsing.parse_digits(text) == number
    assert value_parsing.parse_digits("9" * 5000) is None


def test_ranges_of_steps() -> None:
    assert value_parsing.parse_step_range("X", "20:25") == (20, 25)
    for text in ("", "20", "20:", "25:20", "20:20", "1:2:3", "-1:2", "1: 2", "0:9999999999"):
        with errors.expect_user_error(errors.INVALID, where="X", value=text, remedy="X=20:25"):
            value_parsing.parse_step_range("X", text)


def test_largest_numbers() -> None:
    assert value_parsing.parse_whole_number("X", "7", minimum=0, maximum=7) == 7
    with errors.expect_user_error(errors.INVALID, where="X", value="8", remedy=("0", "7")):
        value_parsing.parse_whole_number("X", "8", minimum=0, maximum=7)
    assert value_parsing.parse_whole_number("X", "999999999") == 999999999
    for text in ("1000000000", "9" * 30):
        with errors.expect_user_error(errors.INVALID, value=text, remedy="from 1 to 999999999"):
            value_parsing.parse_whole_number("X", text)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert value_parsing.parse_path("X", "a/../b") == f"{tmp_path}/b"
    assert value_parsing.parse_path("X", "~/b") == f"{tmp_path}/b"
    for address in ("gs://bucket/~/../a", "s3://bucket", "GS://bucket"):
        assert value_parsing.parse_path("X", address) == address
    for text in ("", "a\0b"):
        with errors.expect_user_error(errors.INVALID, where="X", value=text):
            value_parsing.parse_path("X", text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gs://bucket/a", ("gs://", "bucket/a")),
        ("S3://bucket", ("S3://", "bucket")),
        ("/a/gs://b", ("", "/a/gs://b")),
        ("pvc:a", ("", "pvc:a")),
        ("", ("", "")),
    ],
)
def test_schemes(text: str, parts: tuple[str, str]) -> None:
    assert value_parsing.split_scheme(text) == parts
    assert value_parsing.is_address(text) is bool(parts[0])


def test_addresses() -> None:
    assert value_parsing.parse_host_and_port("X", "node1:1234") == ("node1", 1234)
    assert value_parsing.parse_host_and_port("X", "[::1]:1") == ("[::1]", 1)
    for text in ("", "node1", "node1:", ":1234", "node1:0", "node1:65536", "a b:1", "http://a:1"):
        with errors.expect_user_error(errors.INVALID, where="X", value=text, remedy="HOST:PORT"):
            value_parsing.parse_host_and_port("X", text)


@pytest.mark.parametrize(
    ("platforms", "cpu"), [("cpu", True), ("cpu,cuda", True), ("cuda,cpu", False), ("", False)]
)
def test_the_first_platform_of_jax(platforms: str, cpu: bool) -> None:
    assert value_parsing.asks_for_cpu(platforms) is cpu
