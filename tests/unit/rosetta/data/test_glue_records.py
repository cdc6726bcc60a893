"""Records of GLUE and SuperGLUE on JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.data import bad_records, glue_records
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

PAIR = {"sentence1": "Ann sings.", "sentence2": "She sings."}
PREMISE = {"premise": "Ann sings.", "hypothesis": "She sings."}
WSC = {"text": "Ann saw that she won", "label": True, "idx": 4}
SPANS = {"span1_text": "Ann", "span1_index": 0, "span2_text": "she", "span2_index": 3}

ANSWER = {"paragraph": "p", "question": "q", "answer": "b", "label": 1}
QUESTION = {"passage": "p", "query": "q", "entities": [], "answers": ["a"]}
MULTIRC_WITHOUT_LABEL = {
    "idx": 3,
    "passage": {
        "text": "p",
        "questions": [{"question": "q", "idx": 4, "answers": [{"text": "b", "idx": 5}]}],
    },
}
BAD_NUMBERS: list[tuple[str, str, dict[str, Any]]] = [
    ("super_glue", "multirc", {**ANSWER, "idx": {"paragraph": "x", "question": 4, "answer": 5}}),
    ("super_glue", "record", {**QUESTION, "idx": {"passage": "one", "query": 2}}),
    ("super_glue", "wsc", {**WSC, **SPANS, "span1_index": "x"}),
    ("super_glue", "wsc", {**WSC, **SPANS, "span1_index": float("inf")}),
]


def write_lines(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def read_rows(path: Path, benchmark: str, name: str, *records: Any) -> list[dict[str, Any]]:
    local = glue_records.LocalTask(benchmark, name, write_lines(path / "a.jsonl", *records))
    return list(glue_records.read_rows(local))


@pytest.mark.parametrize(
    ("benchmark", "name", "record", "row"),
    [
        ("glue", "cola", {"sentence": "Go.", "label": 1, "idx": 7}, {"label": 1, "idx": 7}),
        ("glue", "cola", {"sentence": "Go.", "label": "acceptable"}, {"label": 1, "idx": 0}),
        ("glue", "cola", {"sentence": "Go.", "label": "1"}, {"label": 1}),
        ("super_glue", "boolq", {"question": "a", "passage": "b", "label": "true"}, {"label": 1}),
        ("glue", "stsb", {**PAIR, "label": "3.8"}, {"label": 3.8}),
        ("glue", "stsb", {**PAIR, "label": 2.5}, {"label": 2.5, "sentence1": "Ann sings."}),
        ("glue", "mnli", {**PREMISE, "label": "contradiction"}, {"label": 2}),
        ("super_glue", "cb", {**PREMISE, "label": "contradiction"}, {"label": 1}),
        ("super_glue", "boolq", {"question": "a", "passage": "b", "label": True}, {"label": 1}),
        ("super_glue", "wsc", {**WSC, "target": SPANS}, {**SPANS, "label": 1, "idx": 4}),
        ("super_glue", "wsc", {**WSC, **SPANS}, {**SPANS, "label": 1}),
    ],
    ids=[
        "number",
        "word",
        "number-text",
        "boolean-text",
        "score-text",
        "score",
        "mnli",
        "cb",
        "boolean",
        "wsc-published",
        "wsc-flat",
    ],
)
def test_a_record_as_a_row(
    benchmark: str, name: str, record: Any, row: dict[str, Any], tmp_path: Path
) -> None:
    (found,) = read_rows(tmp_path, benchmark, name, record)
    assert {field: found[field] for field in row} == row
    assert set(glue_records.BENCHMARKS[benchmark][name].fields) <= set(found)


def test_multirc_as_published_and_as_rows(tmp_path: Path) -> None:
    answers = [{"text": "b", "idx": 5, "label": 1}, {"text": "c", "idx": 6, "label": 0}]
    published = {
        "idx": 3,
        "passage": {"text": "p", "questions": [{"question": "q", "idx": 4, "answers": answers}]},
    }
    index = {"paragraph": 3, "question": 4, "answer": 5}
    row = {"paragraph": "p", "question": "q", "answer": "b", "label": 1, "idx": index}
    found = read_rows(tmp_path, "super_glue", "multirc", published)
    assert found[0] == row
    assert [each["label"] for each in found] == [1, 0]
    assert read_rows(tmp_path, "super_glue", "multirc", row) == [row]


def test_record_as_published_and_as_rows(tmp_path: Path) -> None:
    published = {
        "idx": 1,
        "passage": {
            "text": "Ann met Bob. Ann left.",
            "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 13, "end": 15}],
        },
        "qas": [
            {"query": "@placeholder left", "idx": 2, "answers": [{"text": "Ann"}, {"text": "Ann"}]},
            {"query": "of the test set", "idx": 3},
        ],
    }
    row = {
        "passage": "Ann met Bob. Ann left.",
        "query": "@placeholder left",
        "entities": ["Ann", "Bob"],
        "answers": ["Ann"],
        "idx": {"passage": 1, "query": 2},
    }
    assert read_rows(tmp_path, "super_glue", "record", published) == [row]
    assert read_rows(tmp_path, "super_glue", "record", row) == [row]


@pytest.mark.parametrize(
    ("benchmark", "name", "record"),
    [
        ("glue", "cola", {"sentence": "Go."}),
        ("glue", "cola", {"sentence": "Go.", "label": -1}),
        ("super_glue", "record", {"passage": "p", "query": "q", "entities": [], "idx": {}}),
    ],
    ids=["no-label", "hidden-label", "no-index"],
)
def test_records_without_a_label(benchmark: str, name: str, record: Any, tmp_path: Path) -> None:
    kind = errors.MISSING if name == "cola" else errors.INVALID
    with errors.expect_user_error(kind, where="a.jsonl"):
        read_rows(tmp_path, benchmark, name, record)


@pytest.mark.parametrize(
    ("benchmark", "name", "record"),
    [
        ("glue", "cola", {"sentence": "Go.", "label": 2}),
        ("glue", "cola", {"sentence": "Go.", "label": "maybe"}),
        ("glue", "cola", {"sentence": "Go.", "label": 0.5}),
        ("glue", "cola", {"sentence": "Go.", "label": [1]}),
        ("glue", "cola", {"sentence": "Go.", "label": "2"}),
        ("glue", "stsb", {**PAIR, "label": "high"}),
        ("glue", "stsb", {**PAIR, "label": "nan"}),
        ("glue", "stsb", {**PAIR, "label": float("nan")}),
        ("glue", "stsb", {**PAIR, "label": True}),
        ("glue", "rte", {"sentence1": "a", "label": 0}),
        ("super_glue", "wsc", {**WSC, **SPANS, "span2_index": 9}),
        ("super_glue", "wsc", WSC),
        ("super_glue", "multirc", {"passage": {"text": "p"}}),
        *BAD_NUMBERS,
    ],
    ids=[
        "number",
        "word",
        "fraction",
        "list",
        "number-text",
        "score",
        "nan-text",
        "nan",
        "truth",
        "field",
        "span-place",
        "span-missing",
        "layout",
        "multirc-number",
        "record-number",
        "wsc-number",
        "infinite-number",
    ],
)
def test_wrong_records(benchmark: str, name: str, record: Any, tmp_path: Path) -> None:
    with errors.expect_user_error(errors.INVALID, where="line 1"):
        read_rows(tmp_path, benchmark, name, record)


@pytest.mark.parametrize(
    ("benchmark", "name", "record"), BAD_NUMBERS, ids=["multirc", "record", "wsc", "infinite"]
)
def test_a_record_with_a_bad_number_is_skipped(
    benchmark: str, name: str, record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_RECORDS", "skip")
    numbers = {"paragraph": 1, "question": 2, "answer": 3, "passage": 4, "query": 5}
    good = {**record, "span1_index": 0, "idx": numbers}
    assert len(read_rows(tmp_path, benchmark, name, record, good)) == 1


def test_the_folder_of_a_benchmark(tmp_path: Path) -> None:
    for name in ("BoolQ/val.jsonl", "BoolQ/train.jsonl", "CB/dev.jsonl", "copa.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    found = glue_records.find_local_tasks("task:super_glue_v102_proportional", f"jsonl:{tmp_path}")
    files = {local.local_name: local.path.removeprefix(f"{tmp_path}/") for local in found}
    assert files == {
        "super_glue_boolq": "BoolQ/val.jsonl",
        "super_glue_cb": "CB/dev.jsonl",
        "super_glue_copa": "copa.jsonl",
    }


def test_names_of_a_folder_and_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SST-2/dev.jsonl", "STS-B.jsonl", "MNLI-matched.jsonl", "AX.jsonl", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        label = {"label": 1, "sentence": "a", **PAIR, **PREMISE}
        write_lines(tmp_path / name, label)
    name, data = "task:glue_v002_proportional", f"jsonl:{tmp_path}"
    tasks = [local.name for local in glue_records.find_local_tasks(name, data)]
    assert tasks == ["sst2", "stsb", "mnli_matched"]
    glue_records.check_files(name, data)
    missing, left_out = capsys.readouterr().err.splitlines()
    assert "cola" in missing
    assert "qnli" in missing
    assert "stsb" not in missing
    assert "AX.jsonl" in left_out


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("task:glue_v002_proportional", "jsonl:.", errors.MISSING),
        ("task:glue_cola_v002", "tfrecord:a", errors.INVALID),
        ("task:glue_cola_v002", "jsonl:none.jsonl", errors.MISSING),
        ("task:glue_ax_v002", "jsonl:a.jsonl", errors.UNKNOWN),
    ],
    ids=["empty-folder", "other-kind", "no-file", "no-labels"],
)
def test_wrong_files(
    name: str, data: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with errors.expect_user_error(kind):
        glue_records.find_local_tasks(name, data)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sst2", "task:glue_sst2_v002"),
        ("glue_sst2", "task:glue_sst2_v002"),
        ("super_glue_boolq", "task:super_glue_boolq_v102"),
        ("BoolQ", "task:super_glue_boolq_v102"),
        ("super_glue_rte", "task:super_glue_rte_v102"),
        ("capitals", ""),
    ],
)
def test_the_task_that_a_short_name_means(text: str, name: str) -> None:
    assert glue_records.suggest_name(text) == name


def test_a_folder_has_a_file_for_each_split(tmp_path: Path) -> None:
    for file in ("CoLA/train.jsonl", "CoLA/dev.jsonl", "SST-2/train.jsonl", "rte.jsonl"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}\n", encoding="utf-8")
    files = {
        split: {
            local.name: local.path.removeprefix(f"{tmp_path}/")
            for local in glue_records.find_local_tasks(
                "task:glue_v002_proportional", f"jsonl:{tmp_path}", split
            )
        }
        for split in ("train", "validation")
    }
    assert files == {
        "train": {"cola": "CoLA/train.jsonl", "sst2": "SST-2/train.jsonl", "rte": "rte.jsonl"},
        "validation": {"cola": "CoLA/dev.jsonl", "rte": "rte.jsonl"},
    }


@pytest.mark.parametrize(
    "name", ["task:glue_sst2_v002", "task:glue_v002_proportional"], ids=["task", "mixture"]
)
def test_several_parts_are_refused(name: str, tmp_path: Path) -> None:
    files = [tmp_path / "m1.jsonl", tmp_path / "m2.jsonl"]
    for file in files:
        write_lines(file, {"sentence": "a", "label": 1})
    data = json.dumps({f"jsonl:{file}": 1 for file in files})
    for use in (glue_records.find_local_tasks, glue_records.check_files):
        with errors.expect_user_error(errors.INVALID, where="m2.jsonl", value=2):
            use(name, data, "train")


@pytest.mark.parametrize(
    ("benchmark", "name", "record"),
    [
        ("glue", "cola", {"sentence": "Go.", "lable": 1}),
        ("super_glue", "wsc", {"text": "Ann saw that she won", "target": SPANS}),
        ("super_glue", "multirc", MULTIRC_WITHOUT_LABEL),
    ],
    ids=["cola", "wsc", "multirc"],
)
def test_a_record_to_train_on_has_the_field_of_the_label(
    benchmark: str, name: str, record: Any
) -> None:
    task = glue_records.BENCHMARKS[benchmark][name]
    assert glue_records.make_rows(name, task, record)[0]["label"] == glue_records.NO_LABEL
    with pytest.raises(bad_records.RecordFault, match="label"):
        glue_records.make_rows(name, task, record, "train")


@pytest.mark.parametrize("label", [None, -1], ids=["null", "minus-one"])
def test_a_hidden_label_in_the_split_to_train_on(label: Any) -> None:
    task, record = glue_records.BENCHMARKS["glue"]["cola"], {"sentence": "Go.", "label": label}
    (row,) = glue_records.make_rows("cola", task, record, "train")
    assert row["label"] == glue_records.NO_LABEL


def test_a_second_file_of_a_task_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "SST-2").mkdir()
    for file in ("SST-2/train.jsonl", "sst2.jsonl"):
        write_lines(tmp_path / file, {"sentence": "a", "label": 1})
    glue_records.check_files("task:glue_v002_proportional", f"jsonl:{tmp_path}", "train")
    left_out = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path}/sst2.jsonl: " in left_out
    assert f"sst2 already has {tmp_path}/SST-2/train.jsonl" in left_out
