from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rosetta.data import data_spec
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("synthetic", data_spec.Spec("synthetic")),
        ("text:/data/*.txt", data_spec.Spec("text", "/data/*.txt")),
        ("hf:owner/name/config#test", data_spec.Spec("hf", "owner/name/config", "test")),
        ("tfds:c4/en:3.1.0#validation", data_spec.Spec("tfds", "c4/en:3.1.0", "validation")),
        ("task:mine", data_spec.Spec("task", "mine")),
        ("jsonl:/a#b.jsonl", data_spec.Spec("jsonl", "/a#b.jsonl")),
    ],
)
def test_a_spec_is_parsed_and_printed_again(typed: str, expected: data_spec.Spec) -> None:
    assert data_spec.parse_spec(typed) == expected
    assert str(expected) == typed


@pytest.mark.parametrize(
    ("typed", "kind", "facts"),
    [
        ("/data/a.txt", errors.UNKNOWN, {"where": "DATA=/data/a.txt", "value": "/data/a.txt"}),
        ("feather:/a", errors.UNKNOWN, {"where": "DATA=feather:/a", "value": "feather"}),
        ("text:", errors.INVALID, {"where": "DATA=text:", "remedy": "text:"}),
        ("text", errors.INVALID, {"where": "DATA=text", "remedy": "text:"}),
        ("synthetic:3", errors.INVALID, {"remedy": "DATA=synthetic"}),
        ("{", errors.INVALID, {"where": "DATA={", "names": "JSON"}),
        ("{}", errors.INVALID, {"where": "DATA={}", "names": "source"}),
        ('{"text:a": 1, "text:a": 2}', errors.INVALID, {"where": "DATA", "value": "text:a"}),
        ('{"text:a": 1, " text:a": 2}', errors.INVALID, {"where": "DATA", "value": "text:a"}),
        ('{"hf:a": 1, "hf:a#": 2}', errors.INVALID, {"where": "DATA", "value": "hf:a"}),
        ('{"text:a": 0}', errors.INVALID, {"where": "DATA", "value": 0, "names": "text:a"}),
        ('{"text:a": "much"}', errors.INVALID, {"where": "DATA", "value": "much"}),
        ('{"text:a": true}', errors.INVALID, {"where": "DATA", "value": True}),
        ('{"text:a": 1, "task:b": 1}', errors.CONFLICT, {"where": "DATA"}),
    ],
)
def test_an_invalid_spec_is_refused(typed: str, kind: str, facts: dict[str, Any]) -> None:
    with errors.expect_user_error(kind, **facts) as raised:
        data_spec.parse_parts(typed)
    assert "\n" not in str(raised.value)


def test_a_mixture_is_a_mapping_or_its_json() -> None:
    rates = {"text:a": 0.7, "jsonl:b": 3}
    assert data_spec.parse_parts(rates) == data_spec.parse_parts('{"text:a": 0.7, "jsonl:b": 3}')
    assert [part.rate for part in data_spec.parse_parts(rates)] == [0.7, 3.0]
    assert data_spec.parse_parts(data_spec.describe_data(rates)) == tuple(
        sorted(data_spec.parse_parts(rates), key=lambda part: str(part.spec))
    )
    assert data_spec.describe_data("text:a") == data_spec.describe_data({"text:a": 5.0}) == "text:a"


def test_files_are_sorted_and_none_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("x\n")
    paths = data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/*.txt,{tmp_path}/b.*"))
    assert paths == (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))


@pytest.mark.parametrize(
    ("typed", "kind", "where", "remedy"),
    [
        ("text:{folder}", errors.INVALID, "{folder}", "text:{folder}/*"),
        ("jsonl:{folder}/", errors.INVALID, "{folder}/", "jsonl:{folder}/*"),
        (
            "text:{folder}/a,text:b,text:c",
            errors.INVALID,
            "DATA=text:{folder}/a,text:b,text:c",
            "text:{folder}/a,b,c",
        ),
        (
            "text:{folder}/a,jsonl:b",
            errors.INVALID,
            "DATA=text:{folder}/a,jsonl:b",
            '{{"text:{folder}/a": 0.5, "jsonl:b": 0.5}}',
        ),
        ("text:{folder}/a,new:b", errors.MISSING, "new:b", "container"),
    ],
)
def test_a_pattern_without_files_is_refused_with_a_correction(
    typed: str, kind: str, where: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("x\n")
    with errors.expect_user_error(kind, remedy=remedy.format(folder=tmp_path)) as raised:
        data_spec.find_files(data_spec.parse_spec(typed.format(folder=tmp_path)))
    assert raised.value.where == where.format(folder=tmp_path)


def test_missing_empty_and_remote_files_are_refused(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.MISSING, where=f"{tmp_path}/none*"):
        data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/none*"))
    (tmp_path / "empty.txt").touch()
    with errors.expect_user_error(errors.MISSING, where=f"{tmp_path}/empty.txt", remedy="text"):
        data_spec.find_files(data_spec.parse_spec(f"text:{tmp_path}/empty.txt"))
    with errors.expect_user_error(errors.UNSUPPORTED, where="s3://bucket/a", remedy="aws s3 sync"):
        data_spec.find_files(data_spec.parse_spec("megatron:s3://bucket/a"))


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("text:https://h/a?sig=1,2,https://h/b?sig=3", "text:https://h/a,https://h/b"),
        ("text:https://h/a?sig=1,/data/b?.txt", "text:https://h/a,/data/b?.txt"),
        ("text:/data/a?.txt,https://h/b?sig=1", "text:/data/a?.txt,https://h/b"),
        ("text:gs://b/a?.txt", "text:gs://b/a?.txt"),
        ("tfds:squad#test", "tfds:squad#test"),
        ("synthetic", "synthetic"),
        ('{"text:/a?": 2, "csv:http://h/a?1": 1}', '{"text:/a?": 2.0, "csv:http://h/a": 1.0}'),
    ],
)
def test_only_queries_of_web_addresses_are_left_out(data: str, shown: str) -> None:
    assert data_spec.describe_without_queries(data) == shown
    assert data_spec.describe_without_queries(shown) == shown
