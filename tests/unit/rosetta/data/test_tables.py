from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from rosetta.data import data_spec, documents, tables, task_records
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

QUOTES = {
    'text,id\n"a ""quoted"" word",1\nplain,2\n': 0,
    'text,id\n"two\nlines",1\nplain,2\n': 0,
    'text,id\nfine,1\n"open,2\nmore,3\n': 3,
    'text,id\n"open,2\nmore,3\nsome "more,4\nlast,5\n': 2,
}

# A file's name and content, the line of its first bad row, and the number of fields there.
WIDTHS = {
    "a comma too many in each row": ("a.csv", "text,id\nx,1,\ny,2,\n", 2, 3),
    "a comma too many in one row": ("a.csv", "text,id\nx,1\ny,2,\n", 3, 3),
    "a comma in the text": ("a.csv", "id,text\n1,x, y\n", 2, 3),
    "a field too few": ("a.csv", "id,text\n1,x\n2\n", 3, 1),
    "after a row of two lines": ("a.csv", 'id,text\n1,"x\ny"\n\n2,x,y\n', 5, 3),
    "a short header": ("a.csv", "\n\ntext\nx,1\n", 4, 2),
    "a header that is too long": ("a.csv", "text,id,\nx,1\n", 2, 2),
    "a tab too many": ("a.tsv", "id\ttext\n1\tx\t\n", 2, 3),
    "a tab too few": ("a.TSV", 'id\ttext\n1\t"x\n2\n', 3, 1),
    "an empty text in quotes": ("a.csv", 'id,text\n1,x\n""\n', 3, 1),
    "a lone tab": ("a.tsv", "id\tn\ttext\n1\t2\tx\n\t\n", 3, 2),
    "in a compressed file": ("a.csv.gz", "text,id\nx,1,\n", 2, 3),
}

READ = {
    "words for missing values": (
        "a.csv",
        "id,text\n1,NA\n2,null\n3,None\n4,nan\n",
        ["NA", "null", "None", "nan"],
    ),
    "numbers": ("a.csv", "id,text\n1,007\n2,1e3\n", ["007", "1e3"]),
    "numbers of a .tsv": ("a.tsv", "id\ttext\n1\t12\n2\tN/A\n", ["12", "N/A"]),
    "true and false": ("a.csv", "text\nTrue\nfalse\n", ["True", "false"]),
    "a missing field": ("a.csv", "id,text\n1,\n2,x\n", ["x"]),
    "blank lines": ("a.csv", "id,text\r\n1,x\r\n\r\n  \r\n2,y\r\n", ["x", "y"]),
    "a byte order mark": ("a.csv", '\ufeff"text","id"\n"a, b\nc",1\n', ["a, b\nc"]),
    "a comma at the end of header and rows": ("a.csv", "text,id,\nx,1,\n", ["x"]),
    "quotes of a .tsv": ("a.tsv", 'id\ttext\n1\t"open\n2\tx\n', ['"open', "x"]),
    "a long field": ("a.csv", f"text,id\n{'word ' * 40_000}x,1\n", ["word " * 40_000 + "x"]),
    "a compressed file": ("a.csv.gz", "text,id\nNA,1\n", ["NA"]),
}


def write_table(folder: Path, name: str, body: str) -> Path:
    path = folder / "data" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(body.encode()) if name.endswith(".gz") else body.encode())
    return path


def check_table(path: Path) -> dict[str, object]:
    separator = "\t" if ".tsv" in path.name.lower() else ","
    return tables.check_tables((str(path),), separator)


def require_datasets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    pytest.importorskip("datasets", reason="NOT CHECKED: needs the packages of a baked environment")


@pytest.mark.parametrize(("body", "line"), QUOTES.items(), ids=range(len(QUOTES)))
def test_a_quote_that_swallows_rows_of_a_csv_is_refused(
    body: str, line: int, tmp_path: Path
) -> None:
    path = write_table(tmp_path, "a.csv", body)
    if not line:
        assert check_table(path)["quoting"] == 0
        return
    with errors.expect_user_error(errors.INVALID, where=f"a.csv, line {line}", remedy=".tsv"):
        check_table(path)


@pytest.mark.parametrize(("name", "body", "line", "count"), WIDTHS.values(), ids=WIDTHS)
def test_a_row_with_another_number_of_fields_is_refused(
    name: str, body: str, line: int, count: int, tmp_path: Path
) -> None:
    with errors.expect_user_error(errors.INVALID, where=f"{name}, line {line}", value=count):
        check_table(write_table(tmp_path, name, body))


@pytest.mark.parametrize(("name", "body", "texts"), READ.values(), ids=READ)
def test_each_field_is_read_as_text(
    name: str, body: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_table(write_table(tmp_path, name, body))
    require_datasets(tmp_path, monkeypatch)
    assert (
        list(documents.read_documents(data_spec.parse_spec(f"hf:{tmp_path}/data"), "text")) == texts
    )


@pytest.mark.parametrize(
    "others",
    [[], ["notes.json"], ["b.csv", "notes.txt"]],
    ids=["alone", "a draw", "most are tables"],
)
def test_a_row_is_refused_before_training(
    others: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_datasets(tmp_path, monkeypatch)
    write_table(tmp_path, "a.csv", "text,id\nx,1,\n")
    for name in others:
        write_table(
            tmp_path, name, '{"text": "y"}\n' if name.endswith(".json") else "text,id\nx,1\n"
        )
    source = data_spec.parse_spec(f"hf:{tmp_path}/data")
    if others == ["notes.json"]:  # the datasets package reads JSON there, and no table
        assert list(documents.read_documents(source, "text")) == ["y"]
        return
    with errors.expect_user_error(errors.INVALID, where="a.csv, line 2", value=3, names="2"):
        next(documents.read_documents(source, "text"))


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("id,text\r1,x\r,y\r", 3),
        ("id,text\n\r,y\n", 3),
        ("id,text\r1,x\r2,y\r", 0),
        ('id,text\r\n"a\r",x\r\n,y\r\n', 0),
    ],
)
def test_a_first_field_that_pandas_would_lose_is_refused(
    body: str, line: int, tmp_path: Path
) -> None:
    path = write_table(tmp_path, "a.csv", body)
    if not line:
        assert check_table(path)["index_col"] is False
        return
    with errors.expect_user_error(errors.INVALID, where=f"line {line}", remedy="dos2unix"):
        check_table(path)


def test_two_kinds_of_tables_in_a_folder_are_refused(tmp_path: Path) -> None:
    paths = [str(write_table(tmp_path, name, "text\nx\n")) for name in ("a.tsv", "b.csv")]
    with errors.expect_user_error(errors.CONFLICT, where=tmp_path, names=(".tsv", ".csv")):
        tables.check_tables(tuple(paths), ",")


def test_a_file_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where="a.zip", names=(".csv", ".tsv")):
        tables.check_tables((str(write_table(tmp_path, "a.zip", "")),), ",")


def test_records_of_a_table_have_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_datasets(tmp_path, monkeypatch)
    write_table(
        tmp_path,
        "a.csv",
        "premise,hypothesis,label,idx\nNA,h,0,7\np,null,2,8\np,h,-1,9\np,h,,10\np,h,neutral,11\n",
    )
    examples = list(
        task_records.read_examples(data_spec.parse_spec(f"hf:{tmp_path}/data"), "mnli", "train")
    )
    assert [record["targets"] for record in examples] == ["entailment", "contradiction", "neutral"]
    assert examples[0]["inputs"] == "mnli hypothesis: h premise: NA"
