from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rosetta.core.errors import UserError
from rosetta.data import spec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("synthetic", spec.Spec("synthetic")),
        ("text:/data/*.txt", spec.Spec("text", "/data/*.txt")),
        ("hf:owner/name/config#test", spec.Spec("hf", "owner/name/config", "test")),
        ("tfds:c4/en:3.1.0#validation", spec.Spec("tfds", "c4/en:3.1.0", "validation")),
        ("task:mine", spec.Spec("task", "mine")),
        ("jsonl:/a#b.jsonl", spec.Spec("jsonl", "/a#b.jsonl")),
    ],
)
def test_what_is_typed_is_read_and_told_again(typed: str, expected: spec.Spec) -> None:
    assert spec.parse(typed) == expected
    assert str(expected) == typed


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("/data/a.txt", "no kind of data"),
        ("parquet:/a", "no kind of data"),
        ("text:", "what follows it"),
        ("text", "what follows it"),
        ("synthetic:3", "takes nothing"),
        ("{", "no JSON object"),
        ("{}", "at least one"),
        ('{"text:a": 1, "text:a": 2}', "'text:a' is given twice; give it once"),
        ('{"text:a": 1, " text:a": 2}', "'text:a' is given twice"),
        ('{"hf:a": 1, "hf:a#": 2}', "'hf:a' is given twice"),
        ('{"text:a": 0}', "rate of text:a is 0"),
        ('{"text:a": "much"}', "rate"),
        ('{"text:a": true}', "rate"),
        ('{"text:a": 1, "task:b": 1}', "do not mix"),
    ],
)
def test_what_cannot_be_read_is_one_line(typed: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as raised:
        spec.parts(typed)
    assert "\n" not in str(raised.value)


def test_a_mixture_is_a_mapping_or_its_json() -> None:
    rates = {"text:a": 0.7, "jsonl:b": 3}
    assert spec.parts(rates) == spec.parts('{"text:a": 0.7, "jsonl:b": 3}')
    assert [part.rate for part in spec.parts(rates)] == [0.7, 3.0]
    assert spec.parts(spec.describe(rates)) == tuple(
        sorted(spec.parts(rates), key=lambda part: str(part.spec))
    )
    assert spec.describe("text:a") == spec.describe({"text:a": 5.0}) == "text:a"


def test_files_are_sorted_and_none_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("x\n")
    found = spec.files(spec.parse(f"text:{tmp_path}/*.txt,{tmp_path}/b.*"))
    assert found == (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("text:{folder}", "{folder}: it is a folder; name the files in it: text:{folder}/*"),
        ("jsonl:{folder}/", "{folder}/: it is a folder; name the files in it: jsonl:{folder}/*"),
        (
            "text:{folder}/a,text:b,text:c",
            "DATA=text:{folder}/a,text:b,text:c: text: is given twice; give it once, before the first of the patterns: text:{folder}/a,b,c",
        ),
        (
            "text:{folder}/a,jsonl:b",
            'DATA=text:{folder}/a,jsonl:b: text: and jsonl: are two sources; give a mixture: {{"text:{folder}/a": 0.5, "jsonl:b": 0.5}}',
        ),
        (
            "text:{folder}/a,new:b",
            "new:b: no file matches; check the path: inside a container it is the mounted one",
        ),
    ],
)
def test_what_was_meant_is_said_where_no_file_matches(
    typed: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("x\n")
    with pytest.raises(UserError) as raised:
        spec.files(spec.parse(typed.format(folder=tmp_path)))
    assert str(raised.value) == says.format(folder=tmp_path)


def test_missing_empty_and_remote_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file matches"):
        spec.files(spec.parse(f"text:{tmp_path}/none*"))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="empty"):
        spec.files(spec.parse(f"text:{tmp_path}/empty.txt"))
    with pytest.raises(UserError, match="aws s3 sync"):
        spec.files(spec.parse("text:s3://bucket/a.txt"))
