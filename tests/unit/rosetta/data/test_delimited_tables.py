from __future__ import annotations

import csv
import random
from typing import TYPE_CHECKING

import pytest

from rosetta.data import data_spec, delimited_tables, table_files, task_records
from tests.support import data_sources, errors

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "id,text\n"


def read_texts(path: Path, kind: str) -> list[str]:
    return [row.fields["text"] for row in table_files.read_rows(str(path), kind, ["text"])]


@pytest.mark.parametrize(
    ("kind", "body", "texts"),
    [
        ("csv", "1,plain\r\n2,a word\r\n", ["plain", "a word"]),
        (
            "csv",
            '1,"a, b"\n2,"two\nlines, ""quoted"""\n3,""\n',
            ["a, b", 'two\nlines, "quoted"', ""],
        ),
        ("csv", "1,NA\n2,007\n3,null\n4,true", ["NA", "007", "null", "true"]),
        ("csv", "\n1,first\n\n \n2,last\n\n", ["first", "last"]),
        ("csv", '"1",""\n', [""]),
        ("csv", '1,"carriage\r\nreturn"\r\n', ["carriage\r\nreturn"]),
        ("tsv", '1\tsays "so\n2\t"\n3\ta, b\n', ['says "so', '"', "a, b"]),
        ("tsv", "1\t\n", [""]),
    ],
)
def test_fields_are_read_as_they_are_written(
    tmp_path: Path, kind: str, body: str, texts: list[str]
) -> None:
    path = tmp_path / "a"
    header = HEADER.replace(",", delimited_tables.SEPARATORS[kind])
    for mark in ("", "\ufeff"):
        path.write_bytes((mark + header + body).encode())
        assert read_texts(path, kind) == texts


def test_what_pythons_csv_module_writes_is_read_back(tmp_path: Path) -> None:
    chance = random.Random(3)  # noqa: S311 (made-up text)
    alphabet = ["a", " ", ",", '"', "\n", "\t", ";", "é", "\u2028", "\x0b", "\x85"]
    texts = ["".join(chance.choices(alphabet, k=chance.randint(0, 9))) for _ in range(3000)]
    path = tmp_path / "a.csv"
    data_sources.write_csv(path, [{"id": "x", "text": text} for text in texts])
    assert read_texts(path, "csv") == texts
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts


@pytest.mark.parametrize(
    ("kind", "bad", "names"),
    [
        ("csv", "2,a,b", ("3", "2")),
        ("csv", "2", ("1", "2")),
        ("csv", '2,a "word"', "field 2"),
        ("csv", '2,"a word', ()),
        ("csv", '2,"a" word', "field 2"),
        ("csv", '"2"x,word', "field 1"),
        ("csv", "2,a\rword", ()),
        ("csv", ',"', ()),
        ("tsv", "2\ta\tb", ("3", "2")),
        ("tsv", "2", ("1", "2")),
        ("tsv", "2\ta\rb", ()),
    ],
)
def test_a_bad_row_is_named_and_no_other_row_is_lost(
    tmp_path: Path, kind: str, bad: str, names: str | tuple[str, ...]
) -> None:
    separator = delimited_tables.SEPARATORS[kind]
    lines = [f"{number}{separator}good {number}" for number in range(6)]
    path = tmp_path / "a"
    header = HEADER.strip().replace(",", separator)
    path.write_bytes("\n".join([header, *lines[:3], bad, *lines[3:]]).encode())
    rows = list(delimited_tables.read_rows(str(path), kind))
    assert [row.fields["text"] for row in rows if row.fault is None] == [
        f"good {number}" for number in range(6)
    ]
    ((place, fault),) = [(row.place, row.fault) for row in rows if row.fault is not None]
    assert place == "line 5"
    for name in names if isinstance(names, tuple) else (names,):
        assert name in fault.what


def test_a_quote_that_is_never_closed_costs_its_own_row_only(tmp_path: Path) -> None:
    lines = [f'{number},"good, {number}"' for number in range(2000)]
    lines[7] = '7,"open'
    (tmp_path / "a.csv").write_text(HEADER + "\n".join(lines))
    rows = list(delimited_tables.read_rows(str(tmp_path / "a.csv"), "csv"))
    assert [row.place for row in rows if row.fault] == ["line 9"]
    assert len(rows) == 2000


def test_bad_rows_are_skipped_or_stop_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('inputs,targets\na,b\n"c,d\ne,f\n')
    source = data_spec.parse_spec(f"csv:{path}")
    monkeypatch.delenv("BAD_RECORDS", raising=False)
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 3", remedy="BAD_RECORDS"):
        list(task_records.read_examples(source, "text_to_text", "train"))
    monkeypatch.setenv("BAD_RECORDS", "skip")
    examples = list(task_records.read_examples(source, "text_to_text", "train"))
    assert [example["inputs"] for example in examples] == ["a", "e"]


def test_pairs_may_have_columns_of_other_names(tmp_path: Path) -> None:
    records = [{"answer": "Paris", "question": "capital of France"}]
    for data in (
        data_sources.write_csv(tmp_path / "a.csv", records),
        data_sources.write_jsonl(tmp_path / "a.jsonl", records),
    ):
        (example,) = task_records.read_examples(
            data_spec.parse_spec(data), "text_to_text", "train", field="question, answer"
        )
        assert (example["inputs"], example["targets"]) == ("capital of France", "Paris")


def test_inference_needs_the_column_of_inputs_only(tmp_path: Path) -> None:
    data = data_sources.write_csv(tmp_path / "a.csv", [{"question": "capital of France"}])
    source = data_spec.parse_spec(data)
    with errors.expect_user_error(errors.MISSING, where="a.csv", value="answer"):
        list(task_records.read_examples(source, "text_to_text", "train", field="question,answer"))
    (example,) = task_records.read_examples(
        source, "text_to_text", "validation", answered=False, field="question,answer"
    )
    assert example["inputs"] == "capital of France"
