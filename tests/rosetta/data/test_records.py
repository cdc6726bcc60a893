from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.data import records, spec
from rosetta.errors import UserError
from tests.rosetta.data import datakit

if TYPE_CHECKING:
    from pathlib import Path

SQUAD = {"id": "q1", "question": "Who's there?", "context": "It is I, Ann.", "answers": {"text": ["Ann", "Ann."], "answer_start": [9, 9]}}


def test_mnli_is_worded_as_t5_words_it() -> None:
    expected = {"inputs": "mnli hypothesis: A man sleeps. premise: A man is awake.", "targets": "contradiction", "idx": 4}
    assert records.mnli({"premise": "A man is awake.", "hypothesis": "A man sleeps.", "label": 2, "idx": 4}) == expected
    own = {"sentence1": "A man is awake.", "sentence2": "A man sleeps.", "gold_label": "contradiction", "idx": 4}
    assert records.mnli(own) == expected
    for unlabelled in (-1, "-"):
        assert records.mnli({"premise": "a", "hypothesis": "b", "label": unlabelled}) is None


def test_squad_is_worded_as_t5_words_it() -> None:
    found = records.squad(SQUAD)
    assert found is not None
    assert found["inputs"] == "question: Who ' s there ? context: It is I , Ann . "
    assert found["targets"] == "Ann"
    assert found["answers"] == ["Ann", "Ann . "]
    assert records.squad({**SQUAD, "answers": {"text": []}}) is None


@pytest.mark.parametrize("record", [{}, {"premise": "a", "hypothesis": "b", "label": 3}, {"premise": "a", "hypothesis": "b", "label": "maybe"}, {"premise": 1, "hypothesis": "b", "label": 1}])
def test_a_record_of_something_else_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"label|lacks"):
        records.mnli(record)


def test_records_come_from_every_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    answers = [b"Ann", b"Ann."]
    features: Any = {"id": [b"q1"], "question": [b"Who's there?"], "context": [b"It is I, Ann."], "answers/text": answers, "answers/answer_start": [9, 9]}
    body = datakit.example(**features)
    datakit.tfds(tmp_path, "squad/v1.1", {"train": [[body]], "validation": [[body, body]]}, "3.0.0")
    (tmp_path / "a.jsonl").write_text(json.dumps(SQUAD) + "\n\n" + json.dumps(SQUAD) + "\n")
    own = {"data": [{"paragraphs": [{"context": SQUAD["context"], "qas": [{"id": "q1", "question": SQUAD["question"], "answers": [{"text": "Ann", "answer_start": 9}, {"text": "Ann."}]}]}]}]}
    (tmp_path / "train-v1.1.json").write_text(json.dumps(own))
    expected = records.squad(SQUAD)
    for name, split, count in (("tfds:squad/v1.1", "train", 1), ("tfds:squad/v1.1", "validation", 2), (f"jsonl:{tmp_path}/a.jsonl", "train", 2), (f"jsonl:{tmp_path}/train-v1.1.json", "train", 1)):
        assert list(records.worded(spec.parse(name), "squad", split)) == [expected] * count


def test_other_tasks_come_worded_and_only_evaluation_does_without_targets(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"inputs": "translate: eins", "targets": "one"}\n{"inputs": "translate: zwei"}\n')
    found = list(records.worded(spec.parse(f"jsonl:{path}"), "text_to_text", "validation"))
    assert [(one["inputs"], one["targets"]) for one in found] == [("translate: eins", "one"), ("translate: zwei", "")]
    with pytest.raises(UserError, match="no target to train on"):
        list(records.worded(spec.parse(f"jsonl:{path}"), "text_to_text", "train"))


def test_an_answer_without_text_is_refused() -> None:
    for answer in ({"answer_start": 9}, {"text": None}, 7):
        with pytest.raises(ValueError, match="an answer has no text"):
            records.squad({**SQUAD, "answers": [answer]})


def test_a_list_under_data_is_squads_own_file_to_squad_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"inputs": "a", "targets": "b", "data": [1, 2]}\n')
    assert len(list(records.worded(spec.parse(f"jsonl:{path}"), "text_to_text", "train"))) == 1
    for article in ("7", '{"paragraphs": [{"qas": [{}]}]}', '{"title": "x"}'):
        path.write_text(f'{{"data": [{article}]}}\n')
        with pytest.raises(UserError, match="not laid out as SQuAD's own file"):
            list(records.worded(spec.parse(f"jsonl:{path}"), "squad", "train"))


def test_faults_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for body, says in (("[1]\n", "no JSON object"), ("{\n", "no JSON object"), ('{"a": 1}\n', "none of mnli: it lacks")):
        path.write_text(body)
        with pytest.raises(UserError, match=says) as raised:
            list(records.worded(spec.parse(f"jsonl:{path}"), "mnli", "train"))
        assert raised.value.where == str(path)
    with pytest.raises(UserError, match="text holds no records"):
        list(records.worded(spec.parse(f"text:{path}"), "mnli", "train"))
