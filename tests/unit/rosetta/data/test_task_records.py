from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core.errors import UserError
from rosetta.data import data_spec, task_records
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

SQUAD = {
    "id": "q1",
    "question": "Who's there?",
    "context": "It is I, Ann.",
    "answers": {"text": ["Ann", "Ann."], "answer_start": [9, 9]},
}


def test_mnli_is_formatted_as_in_t5() -> None:
    expected = {
        "inputs": "mnli hypothesis: A man sleeps. premise: A man is awake.",
        "targets": "contradiction",
        "idx": 4,
    }
    assert (
        task_records.format_mnli(
            {"premise": "A man is awake.", "hypothesis": "A man sleeps.", "label": 2, "idx": 4}
        )
        == expected
    )
    own = {
        "sentence1": "A man is awake.",
        "sentence2": "A man sleeps.",
        "gold_label": "contradiction",
        "idx": 4,
    }
    assert task_records.format_mnli(own) == expected
    for unlabelled in (-1, "-"):
        assert (
            task_records.format_mnli({"premise": "a", "hypothesis": "b", "label": unlabelled})
            is None
        )


def test_squad_is_formatted_as_in_t5() -> None:
    example = task_records.format_squad(SQUAD)
    assert example is not None
    assert example["inputs"] == "question: Who ' s there ? context: It is I , Ann . "
    assert example["targets"] == "Ann"
    assert example["answers"] == ["Ann", "Ann . "]
    assert task_records.format_squad({**SQUAD, "answers": {"text": []}}) is None


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"premise": "a", "hypothesis": "b", "label": 3},
        {"premise": "a", "hypothesis": "b", "label": "maybe"},
        {"premise": 1, "hypothesis": "b", "label": 1},
    ],
)
def test_a_record_of_something_else_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"label|missing"):
        task_records.format_mnli(record)


def test_records_come_from_every_kind_of_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    answers = [b"Ann", b"Ann."]
    features: Any = {
        "id": [b"q1"],
        "question": [b"Who's there?"],
        "context": [b"It is I, Ann."],
        "answers/text": answers,
        "answers/answer_start": [9, 9],
    }
    body = corpora.encode_example(**features)
    corpora.write_tfds_folder(
        tmp_path, "squad/v1.1", {"train": [[body]], "validation": [[body, body]]}, "3.0.0"
    )
    (tmp_path / "a.jsonl").write_text(json.dumps(SQUAD) + "\n\n" + json.dumps(SQUAD) + "\n")
    own = {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": SQUAD["context"],
                        "qas": [
                            {
                                "id": "q1",
                                "question": SQUAD["question"],
                                "answers": [{"text": "Ann", "answer_start": 9}, {"text": "Ann."}],
                            }
                        ],
                    }
                ]
            }
        ]
    }
    (tmp_path / "train-v1.1.json").write_text(json.dumps(own))
    expected = task_records.format_squad(SQUAD)
    for name, split, count in (
        ("tfds:squad/v1.1", "train", 1),
        ("tfds:squad/v1.1", "validation", 2),
        (f"jsonl:{tmp_path}/a.jsonl", "train", 2),
        (f"jsonl:{tmp_path}/train-v1.1.json", "train", 1),
    ):
        assert (
            list(task_records.read_examples(data_spec.parse_spec(name), "squad", split))
            == [expected] * count
        )


def test_text_to_text_is_taken_as_it_is_and_needs_targets_to_train(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"inputs": "translate: eins", "targets": "one"}\n{"inputs": "translate: zwei"}\n'
    )
    examples = list(
        task_records.read_examples(
            data_spec.parse_spec(f"jsonl:{path}"), "text_to_text", "validation", answered=False
        )
    )
    assert [(example["inputs"], example["targets"]) for example in examples] == [
        ("translate: eins", "one"),
        ("translate: zwei", ""),
    ]
    with errors.expect_user_error(errors.INVALID, where=f"{path}, line 2", names="target"):
        list(
            task_records.read_examples(
                data_spec.parse_spec(f"jsonl:{path}"), "text_to_text", "train"
            )
        )


def test_an_answer_without_text_is_refused() -> None:
    for answer in ({"answer_start": 9}, {"text": None}, 7):
        with pytest.raises(ValueError, match="answer"):
            task_records.format_squad({**SQUAD, "answers": [answer]})


def test_squads_own_layout_is_read_for_squad_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"inputs": "a", "targets": "b", "data": [1, 2]}\n')
    assert (
        len(
            list(
                task_records.read_examples(
                    data_spec.parse_spec(f"jsonl:{path}"), "text_to_text", "train"
                )
            )
        )
        == 1
    )
    for article in ("7", '{"paragraphs": [{"qas": [{}]}]}', '{"title": "x"}'):
        path.write_text(f'{{"data": [{article}]}}\n')
        with errors.expect_user_error(errors.INVALID, where=path, names="SQuAD"):
            list(
                task_records.read_examples(data_spec.parse_spec(f"jsonl:{path}"), "squad", "train")
            )


def test_faults_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for body, named in (
        ("[1]\n", "but a list"),
        ("{\n", "not valid JSON"),
        ('{"a": 1}\n', "mnli: premise"),
    ):
        path.write_text(body)
        with pytest.raises(UserError, match=named) as raised:
            list(task_records.read_examples(data_spec.parse_spec(f"jsonl:{path}"), "mnli", "train"))
        assert raised.value.where == f"{path}, line 1"
    with errors.expect_user_error(errors.UNSUPPORTED, where="text:", value="text"):
        list(task_records.read_examples(data_spec.parse_spec(f"text:{path}"), "mnli", "train"))


MNLI: dict[str, Any] = {"premise": "a", "hypothesis": "b", "idx": 3}
QUESTION: dict[str, Any] = {"id": "q1", "question": "Who?", "context": "Ann."}
TEXT: dict[str, Any] = {"id": 7, "inputs": "translate: eins"}
ANSWERED = {
    "mnli": [
        {**MNLI, "label": 0},
        {**MNLI, "label": "0"},
        {**MNLI, "label": "entailment"},
        {**MNLI, "gold_label": "entailment"},
    ],
    "squad": [
        {**QUESTION, "answers": {"text": ["Ann"]}},
        {**QUESTION, "answers": [{"text": "Ann"}]},
        {**QUESTION, "answers/text": ["Ann"]},
        {**QUESTION, "answers": ["Ann"]},
    ],
    "text_to_text": [{**TEXT, "targets": "one"}, {**TEXT, "targets": "one", "idx": 9}],
}
UNANSWERED = {
    "mnli": [
        {**MNLI, "label": -1},
        {**MNLI, "label": "-1"},
        {**MNLI, "label": "-"},
        {**MNLI, "gold_label": ""},
    ],
    "squad": [
        {**QUESTION, "answers": []},
        {**QUESTION, "answers": {"text": []}},
        {**QUESTION, "answers/text": []},
    ],
    "text_to_text": [TEXT],
}
# Left out of training and evaluation would hide a damaged file: these are refused there, and are questions to infer from.
NULL = {
    "mnli": [MNLI, {**MNLI, "label": None}],
    "squad": [
        QUESTION,
        {**QUESTION, "answers": None},
        {**QUESTION, "answers": {"text": None}},
        {**QUESTION, "answers": {"text": [None]}},
        {**QUESTION, "answers": [{"text": None}]},
        {**QUESTION, "answers": {}},
    ],
    "text_to_text": [{**TEXT, "targets": None}],
}
WRONG = {
    "mnli": [
        {**MNLI, "label": label}
        for label in (True, False, 3, -2, 1.5, "maybe", "True", [0], {"a": 1})
    ],
    "squad": [
        {**QUESTION, "answers": answers} for answers in ("Ann", 7, [7], {"text": "Ann"}, True)
    ],
    "text_to_text": [{**TEXT, "targets": targets} for targets in (7, ["one"], True)],
}
NAMED = {"mnli": {"idx": 3}, "squad": {"id": "q1"}, "text_to_text": {"id": 7}}


def _write(path: Path, rows: list[dict[str, Any]]) -> Any:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data_spec.parse_spec(f"jsonl:{path}")


@pytest.mark.parametrize("objective", ["mnli", "squad", "text_to_text"])
def test_every_question_is_a_row_of_inference(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ANSWERED[objective] + UNANSWERED[objective] + NULL[objective]
    source = _write(tmp_path / "a.jsonl", rows)
    examples = list(task_records.read_examples(source, objective, "validation", answered=False))
    assert [bool(example["targets"]) for example in examples] == [
        row in ANSWERED[objective] for row in rows
    ]
    assert len({example["inputs"] for example in examples}) == 1
    assert [example["name"] for example in examples] == [NAMED[objective]] * len(rows)
    task_records.check_all_records(str(source), objective, "validation", answered=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("objective", ["mnli", "squad", "text_to_text"])
def test_records_left_out_of_evaluation_are_reported(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _write(tmp_path / "a.jsonl", ANSWERED[objective] + UNANSWERED[objective])
    assert len(list(task_records.read_examples(source, objective, "validation"))) == len(
        ANSWERED[objective]
    )
    count, all_rows = len(UNANSWERED[objective]), len(ANSWERED[objective] + UNANSWERED[objective])
    assert f"{count} of {all_rows} records" in capsys.readouterr().err
    alone = _write(tmp_path / "b.jsonl", UNANSWERED[objective])
    with errors.expect_user_error(errors.MISSING, where=str(alone), value=count):
        task_records.check_all_records(str(alone), objective, "validation")


@pytest.mark.parametrize(
    ("objective", "row"), [(name, row) for name, rows in NULL.items() for row in rows]
)
def test_a_null_answer_is_refused_in_evaluation_with_its_place(
    objective: str, row: dict[str, Any], tmp_path: Path
) -> None:
    source = _write(tmp_path / "a.jsonl", [*ANSWERED[objective], row])
    with pytest.raises(UserError) as raised:
        task_records.check_all_records(str(source), objective, "validation")
    assert raised.value.where == f"{tmp_path}/a.jsonl, line {len(ANSWERED[objective]) + 1}"


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize(
    ("objective", "row"), [(name, row) for name, rows in WRONG.items() for row in rows]
)
def test_an_invalid_answer_is_refused_in_inference_too(
    objective: str, row: dict[str, Any], answered: bool, tmp_path: Path
) -> None:
    source = _write(tmp_path / "a.jsonl", [*ANSWERED[objective], row])
    for split in ("train", "validation"):
        with errors.expect_user_error(
            errors.INVALID, where=f"line {len(ANSWERED[objective]) + 1}", names=objective
        ):
            list(task_records.read_examples(source, objective, split, answered=answered))


def test_an_empty_file_of_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with errors.expect_user_error(errors.MISSING, where="a.jsonl"):
        task_records.check_all_records(
            f"jsonl:{tmp_path}/a.jsonl", "mnli", "validation", answered=False
        )


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({}, {}),
        ({"id": None, "idx": 0}, {"idx": 0}),
        ({"id": "a", "idx": 1}, {"id": "a"}),
        ({"id": ["a"], "pairID": "12e"}, {"pairID": "12e"}),
        ({"guid": 2**40}, {"guid": 2**40}),
        ({"idx": {"a": 1}}, {"idx": {"a": 1}}),
        ({"id": None, "idx": [1, 2]}, {"idx": [1, 2]}),
        ({"id": 1.5}, {"id": 1.5}),
    ],
)
def test_a_record_is_identified_by_its_own_field(
    record: dict[str, Any], name: dict[str, Any]
) -> None:
    assert task_records.identify_record(record) == name
