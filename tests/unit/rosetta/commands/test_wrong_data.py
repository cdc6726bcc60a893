"""Data that cannot be used: one line that names the place, exit status 2 and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rosetta import cli
from rosetta.data import bad_records
from tests.support import data_sources, errors, required_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXTS = [{"id": str(number), "text": f"good words number {number}"} for number in range(50)]
PAIRS = data_sources.make_pair_records(50)
TO_TEXT = ("--objective", "text_to_text")
NAMED = (*TO_TEXT, "--field", "question,answer")


class Wrong(NamedTuple):
    """Data that cannot be used.

    Attributes:
        write: Writes files into a folder, and returns the data.
        kind: The kind of the error.
        where: What the place of the error has in it.
        options: Options of the command.
    """

    write: Callable[[Path], str]
    kind: str
    where: str
    options: tuple[str, ...] = ()


def write_body(name: str, body: bytes | str, kind: str) -> Callable[[Path], str]:
    """Return a function that writes a file, and returns it as data of a kind."""

    def write(folder: Path) -> str:
        (folder / name).write_bytes(body if isinstance(body, bytes) else body.encode())
        return f"{kind}:{folder}/{name}"

    return write


def write_csv(body: str) -> Callable[[Path], str]:
    return write_body("a.csv", body, "csv")


def write_rows(kind: str, records: list[Any]) -> Callable[[Path], str]:
    """Return a function that writes records of values of any type."""

    def write(folder: Path) -> str:
        if kind == "parquet":
            return data_sources.write_parquet(folder / "a.parquet", records)
        return data_sources.write_saved_set(folder / "saved", records)

    return write


def damage_file(
    kind: str, name: str, change: Callable[[bytes], bytes | None]
) -> Callable[[Path], str]:
    """Return a function that writes good records, and changes or deletes one of their files."""

    def write(folder: Path) -> str:
        data = data_sources.write_records(kind, folder, TEXTS)
        (path,) = folder.rglob(name)
        body = change(path.read_bytes())
        if body is None:
            path.unlink()
        else:
            path.write_bytes(body)
        return data

    return write


def cut(body: bytes) -> bytes:
    return body[: len(body) // 2]


def change_state(**changes: Any) -> Callable[[bytes], bytes]:
    """Return a function that changes entries of a JSON file."""
    return lambda body: json.dumps({**json.loads(body), **changes}).encode()


def append(data: str) -> Callable[[Path], str]:
    """Return a function that writes a good saved set, and names it in another way."""
    return lambda folder: data_sources.write_saved_set(folder / "saved", TEXTS) + data


BINARY = bytes(range(256)) * 20
WRONG: dict[str, Wrong] = {
    # Tables
    "csv: no header": Wrong(write_csv("\n1,2\n"), errors.MISSING, "a.csv"),
    "csv: empty": Wrong(write_csv(""), errors.MISSING, "a.csv"),
    "csv: header alone": Wrong(write_csv("text\n"), errors.MISSING, "a.csv"),
    "csv: a column twice": Wrong(write_csv("text,text\na,b\n"), errors.INVALID, "line 1"),
    "csv: a column without name": Wrong(write_csv("text,\na,b\n"), errors.INVALID, "line 1"),
    "csv: bad header": Wrong(write_csv('"text"x,id\na,b\n'), errors.INVALID, "line 1"),
    "csv: no such column": Wrong(write_csv("id,body\n1,words\n"), errors.MISSING, "a.csv"),
    "csv: semicolons": Wrong(write_csv("id;text\n1;words\n"), errors.INVALID, "line 1"),
    "csv: tabs": Wrong(write_csv("id\ttext\n1\twords\n"), errors.INVALID, "line 1"),
    "csv: too few fields": Wrong(write_csv("id,text\n1,a\n2\n"), errors.INVALID, "line 3"),
    "csv: too many fields": Wrong(write_csv("id,text\n1,a,b\n"), errors.INVALID, "line 2"),
    "csv: open quote": Wrong(write_csv('text\n"a\nb\n'), errors.INVALID, "line 2"),
    "csv: quote in a field": Wrong(write_csv('text\na "b"\n'), errors.INVALID, "line 2"),
    "csv: text after a quote": Wrong(write_csv('text\n"a" b\n'), errors.INVALID, "line 2"),
    "csv: returns alone": Wrong(write_csv("text\ra\rb\n"), errors.INVALID, "line 1"),
    "csv: UTF-16": Wrong(
        write_body("a.csv", "text\nwords\n".encode("utf-16"), "csv"), errors.INVALID, "a.csv"
    ),
    "csv: a workbook": Wrong(
        write_body("a.csv", b"PK\3\4" + BINARY, "csv"), errors.INVALID, "a.csv"
    ),
    "csv: no pairs": Wrong(write_csv("id,text\n1,a\n"), errors.MISSING, "a.csv", TO_TEXT),
    "csv: no such pair": Wrong(write_csv("inputs,targets\na,b\n"), errors.MISSING, "a.csv", NAMED),
    "csv: an empty target": Wrong(
        write_csv("inputs,targets\na,b\nc,\n"), errors.INVALID, "line 3", TO_TEXT
    ),
    "csv: one field of pairs": Wrong(
        write_csv("inputs,targets\na,b\n"),
        errors.INVALID,
        "--field",
        (*TO_TEXT, "--field", "inputs"),
    ),
    "tsv: commas": Wrong(write_body("a.tsv", "id,text\n1,a\n", "tsv"), errors.INVALID, "line 1"),
    "tsv: a tab too many": Wrong(
        write_body("a.tsv", "id\ttext\n1\ta\t\n", "tsv"), errors.INVALID, "line 2"
    ),
    # Compressed files
    "gz: cut short": Wrong(damage_file("gz", "a.jsonl.gz", cut), errors.DAMAGED, "a.jsonl.gz"),
    "gz: not compressed": Wrong(
        write_body("a.txt.gz", "words\n", "text"), errors.DAMAGED, "a.txt.gz"
    ),
    "zst: cut short": Wrong(damage_file("zst", "a.jsonl.zst", cut), errors.DAMAGED, "a.jsonl.zst"),
    "zst: not compressed": Wrong(
        write_body("a.csv.zst", "text\nwords\n", "csv"), errors.DAMAGED, "a.csv.zst"
    ),
    "gz: not JSON": Wrong(
        write_body("a.jsonl.gz", data_sources.compress(b'{"text": "a"}\nno', ".gz"), "jsonl"),
        errors.INVALID,
        "line 2",
    ),
    # Parquet and saved sets
    "parquet: cut short": Wrong(
        damage_file("parquet", "a.parquet", cut), errors.DAMAGED, "a.parquet"
    ),
    "parquet: another file": Wrong(
        write_body("a.parquet", "text\nwords\n", "parquet"), errors.DAMAGED, "a.parquet"
    ),
    "parquet: changed": Wrong(
        damage_file("parquet", "a.parquet", lambda body: body[:8] + bytes(400) + body[408:]),
        errors.DAMAGED,
        "a.parquet",
    ),
    "parquet: no such column": Wrong(
        write_rows("parquet", [{"body": "words"}]), errors.MISSING, "a.parquet"
    ),
    "parquet: numbers": Wrong(write_rows("parquet", [{"text": 7}]), errors.INVALID, "a.parquet"),
    "parquet: no text": Wrong(
        write_rows("parquet", [{"text": "a"}, {"text": None}]), errors.INVALID, "row 2"
    ),
    "saved: no such split": Wrong(append("#validation"), errors.UNKNOWN, "saved"),
    "saved: a file is missing": Wrong(
        damage_file("saved", "data-00001-of-00002.arrow", lambda _: None),
        errors.MISSING,
        "data-00001",
    ),
    "saved: cut short": Wrong(
        damage_file("saved", "data-00000-of-00002.arrow", lambda body: body[:40]),
        errors.DAMAGED,
        "data-00000",
    ),
    "saved: state": Wrong(
        damage_file("saved", "state.json", lambda _: b"{"), errors.DAMAGED, "state.json"
    ),
    "saved: selected rows": Wrong(
        damage_file("saved", "state.json", change_state(_indices_data_files=[{"filename": "x"}])),
        errors.UNSUPPORTED,
        "saved",
    ),
    # ArrayRecord
    "arrayrecord: cut short": Wrong(
        damage_file("arrayrecord", "a.array_record", cut), errors.DAMAGED, "a.array_record"
    ),
    "arrayrecord: another file": Wrong(
        write_body("a.array_record", "words\n", "arrayrecord"), errors.DAMAGED, "a.array_record"
    ),
    "arrayrecord: no such feature": Wrong(
        lambda folder: data_sources.write_array_records(folder / "a.array_record", TEXTS),
        errors.INVALID,
        "record 1",
        ("--field", "body"),
    ),
    # Megatron-LM; tests of megatron_files damage each part of an index.
    "megatron: text": Wrong(write_body("a.idx", "words\n", "megatron"), errors.MISSING, "a.bin"),
    "megatron: no files": Wrong(lambda folder: f"megatron:{folder}/a", errors.MISSING, "a"),
    "megatron: pairs": Wrong(
        lambda folder: data_sources.write_megatron(folder / "a", [[3, 4, 5]]),
        errors.CONFLICT,
        "megatron",
        TO_TEXT,
    ),
    "megatron: ids of another vocabulary": Wrong(
        lambda folder: data_sources.write_megatron(folder / "a", [[300 * 9] * 900]),
        errors.DIFFERS,
        "a",
    ),
    # Names
    "names: another kind first": Wrong(
        write_body("a.txt", "words\n", "csv:text"), errors.INVALID, "DATA=csv:text"
    ),
    "names: a folder": Wrong(lambda folder: f"parquet:{folder}", errors.INVALID, ""),
    "names: two kinds": Wrong(
        lambda folder: f"{write_csv('text')(folder)},text:{folder}/b", errors.INVALID, "DATA="
    ),
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BAD_RECORDS", raising=False)
    bad_records.forget_notes()
    yield
    bad_records.forget_notes()


def test_there_are_at_least_forty_of_them() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = WRONG[name]
    if name.startswith(("parquet", "saved")):
        required_modules.need_modules("pyarrow")
    if name.startswith("arrayrecord"):
        required_modules.need_modules("array_record")
    (tmp_path / "data").mkdir()
    data = wrong.write(tmp_path / "data")
    capsys.readouterr()
    with errors.expect_reported_error(wrong.kind, where=wrong.where):
        assert cli.main(["data", "show", data, *wrong.options]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1, output.err
    assert "Traceback" not in output.err
    unfinished = [path for path in tmp_path.rglob(".tmp-*") if path.is_dir()]
    assert unfinished == []
