"""Records of evaluation sets, and metrics of the user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rosetta.inference import evaluation_sets
from rosetta.inference.evaluation_sets import Question
from tests.support import errors


def _write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_lambada_as_json_lines_and_as_text(tmp_path: Path) -> None:
    passage = "He said \u201cno\u201d to the old man"
    expected = [Question('He said "no" to the old', (" man",))]
    lines = evaluation_sets.read_set(f"lambada={_write(tmp_path / 'a.jsonl', {'text': passage})}")
    assert (lines.kind, lines.questions) == (evaluation_sets.LAST_WORD, expected)
    (tmp_path / "a.txt").write_text(passage + "\n")
    assert evaluation_sets.read_set(f"lambada={tmp_path / 'a.txt'}").questions == expected


def test_boolq_as_published_and_as_in_superglue(tmp_path: Path) -> None:
    own = {"question": "is it cold", "title": "Ice", "answer": True, "passage": "Ice is cold."}
    glue = {"question": "is it hot", "passage": "Ice is cold.", "idx": 3, "label": 0}
    hidden = {**glue, "label": -1}
    found = evaluation_sets.read_set(f"boolq={_write(tmp_path / 'b.jsonl', own, glue, hidden)}")
    assert found.kind == evaluation_sets.CHOICE
    assert [question.target for question in found.questions] == ["yes", "no"]
    assert found.questions[0].prompt == "Ice is cold.\nquestion: is it cold?\nanswer:"


def test_records_of_ones_own(tmp_path: Path) -> None:
    choices = [" a", " b"]
    path = _write(
        tmp_path / "c.jsonl",
        {"prompt": "x", "choices": choices, "answer": 1},
        {"prompt": "y", "choices": choices, "answer": " a"},
    )
    found = evaluation_sets.read_set(f"mine={path}")
    assert (found.name, found.kind) == ("mine", evaluation_sets.CHOICE)
    assert [question.target for question in found.questions] == [" b", " a"]
    path = _write(tmp_path / "d.jsonl", {"prompt": "x", "answer": "y"})
    with path.open("a") as file:
        file.write("\n")
    assert evaluation_sets.read_set(f"mine={path}").kind == evaluation_sets.TEXT


@pytest.mark.parametrize(
    ("records", "kind", "where"),
    [
        ([], errors.INVALID, "mine="),
        ([{"prompt": "x"}], errors.INVALID, "line 1"),
        ([{"answer": "x"}], errors.INVALID, "line 1"),
        ([{"prompt": "x", "choices": ["a"], "answer": 0}], errors.INVALID, "line 1"),
        ([{"prompt": "x", "choices": ["a", 1], "answer": 0}], errors.INVALID, "line 1"),
        ([{"prompt": "x", "choices": ["a", "b"], "answer": 2}], errors.INVALID, "line 1"),
        ([{"prompt": "x", "choices": ["a", "b"], "answer": True}], errors.INVALID, "line 1"),
        ([{"prompt": "x", "choices": ["a", "b"], "answer": "c"}], errors.INVALID, "line 1"),
        (
            [{"prompt": "x", "answer": "a"}, {"prompt": "x", "choices": ["a", "b"], "answer": 0}],
            errors.INVALID,
            "e.jsonl",
        ),
    ],
)
def test_wrong_records(records: list[Any], kind: str, where: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "e.jsonl", *records)
    with errors.expect_user_error(kind, where=where):
        evaluation_sets.read_set(f"mine={path}")


@pytest.mark.parametrize("name", ["lambada", "boolq"])
def test_a_missing_set_says_how_to_fetch_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with errors.expect_user_error(errors.MISSING, remedy=f"download_{name}.py"):
        evaluation_sets.read_set(name)


def test_sets_that_do_not_exist() -> None:
    with errors.expect_user_error(errors.MISSING, where="lambda", remedy="lambada"):
        evaluation_sets.read_set("lambda")
    with errors.expect_user_error(errors.MISSING, where="mine=absent"):
        evaluation_sets.read_set("mine=absent")


_METRICS = """
def count(targets, answers):
    return {"same": sum(a == b for a, b in zip(targets, answers)), "all": len(targets)}

def wrong(targets, answers):
    return 1.0

number = 3
"""


def test_metrics_of_a_file_and_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics_of_mine.py"
    path.write_text(_METRICS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (f"{path}:count", "metrics_of_mine:count"):
        monkeypatch.delitem(sys.modules, "metrics_of_mine", raising=False)
        function = evaluation_sets.load_metric(name)
        measured = evaluation_sets.compute_metric(name, function, ["a", "b", "c"], ["a", "x", "c"])
        assert measured == {"same": 2.0, "all": 3.0}
    for name in (f"{path}:absent", "no_such_module:count", "count", f"{tmp_path}/no.py:count"):
        with errors.expect_user_error(errors.MISSING, where=f"--metric {name}"):
            evaluation_sets.load_metric(name)
    with errors.expect_user_error(errors.INVALID, where="--metric"):
        evaluation_sets.load_metric(f"{path}:number")
    function = evaluation_sets.load_metric(f"{path}:wrong")
    with errors.expect_user_error(errors.FAILED, where="--metric w"):
        evaluation_sets.compute_metric("w", function, ["a"], ["a"])
