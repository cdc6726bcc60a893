"""Questions with and without answers, as inference and evaluation read them through SeqIO."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

seqio = pytest.importorskip(
    "seqio", reason="NOT CHECKED: needs the packages of a baked environment"
)

from rosetta.core.errors import UserError
from rosetta.t5x import dataset, evaluation_data, predictions
from tests.support import corpora

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"inputs": 64, "targets": 16}
COUNT = 20


def row(task: str, number: int) -> dict[str, Any]:
    """Return a record; those with an even number have no answer."""
    answered = number % 2
    if task == "mnli":
        return {"premise": f"p{number}", "hypothesis": "h", "label": answered or -1, "idx": number}
    if task == "squad":
        return {
            "id": f"q{number}",
            "question": f"Who {number}?",
            "context": "Ann.",
            "answers": {
                "text": ["Ann"] if answered else [],
                "answer_start": [0] if answered else [],
            },
        }
    return {
        "id": f"t{number}",
        "inputs": f"say {number}",
        **({"targets": "one"} if answered else {}),
    }


def features(task: str, number: int) -> bytes:
    """Return the record as a tf.train.Example, as TFDS stores it."""
    record = row(task, number)
    answers = record.pop("answers", {"text": []})["text"]
    found: dict[str, Any] = {
        name: [value if isinstance(value, int) else value.encode()]
        for name, value in record.items()
    }
    if answers:
        found["answers/text"] = [answer.encode() for answer in answers]
    elif task == "squad":
        # TFDS writes an empty list as a feature without values.
        return corpora.encode_example(**found) + corpora._encode_field(
            1,
            corpora._encode_field(
                1, corpora._encode_field(1, b"answers/text") + corpora._encode_field(2, b"")
            ),
        )
    return corpora.encode_example(**found)


def source(kind: str, task: str, folder: Path) -> str:
    """Write the records as one kind of source; return its spec."""
    if kind == "jsonl":
        (folder / "a.jsonl").write_text(
            "".join(json.dumps(row(task, number)) + "\n" for number in range(COUNT))
        )
        return f"jsonl:{folder}/a.jsonl"
    bodies = [features(task, number) for number in range(COUNT)]
    if kind == "tfrecord":
        corpora.write_tfrecords(folder / "a.tfrecord", bodies)
        return f"tfrecord:{folder}/a.tfrecord"
    if kind == "tfds":
        corpora.write_tfds_folder(folder, f"my_{task}", {"validation": [bodies]})
        return f"tfds:my_{task}"
    datasets = pytest.importorskip("datasets", reason="NOT CHECKED: needs the datasets package")
    (folder / "set").mkdir()
    rows = [row(task, number) for number in range(COUNT)]
    columns = {name: [record.get(name) for record in rows] for name in rows[1]}
    datasets.Dataset.from_dict(columns).to_parquet(folder / "set" / "validation.parquet")
    return f"hf:{folder}/set"


@pytest.mark.parametrize("kind", ["jsonl", "tfrecord", "tfds", "hf"])
@pytest.mark.parametrize("objective", ["mnli", "squad", "text_to_text"])
def test_inference_has_a_row_for_each_question_and_evaluation_for_each_answer(
    objective: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    data = source(kind, objective, tmp_path)
    for answered, numbers in ((False, range(COUNT)), (True, range(1, COUNT, 2))):
        task = dataset.task(
            data,
            dataset.vocabulary("byte"),
            objective=objective,
            eval_data=data,
            name=f"{objective}_{kind}_{answered}",
            answered=answered,
        )
        if (
            answered and kind == "hf" and objective == "text_to_text"
        ):  # a table has null where JSON lines have no field
            with pytest.raises(
                Exception,
                match=r"(line|record) 1: not a record of text_to_text: inputs or targets are missing",
            ):
                list(task.get_dataset(LENGTHS, "validation", shuffle=False))
            continue
        rows = list(task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())
        assert len(rows) == len(numbers)
        assert [
            str(number) in found["inputs_pretokenized"].decode()
            for found, number in zip(rows, numbers, strict=True)
        ] == [True] * len(rows)
        named = [
            predictions.add_record_name(
                {
                    "inputs": {
                        name: value.decode()
                        for name, value in found.items()
                        if name == evaluation_data.RECORD_NAME
                    },
                    "prediction": "x",
                }
            )
            for found in rows
        ]
        names = [
            {
                name: row(objective, number)[name]
                for name in ("id", "idx")
                if name in row(objective, number)
            }
            for number in numbers
        ]
        assert named == [
            {**({} if answered else name), "inputs": {}, "prediction": "x"} for name in names
        ]


def test_an_error_in_the_data_is_kept_for_the_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_data, "raised_errors", [])
    (tmp_path / "a.jsonl").write_text('{"premise": "a", "hypothesis": "b", "label": true}\n')
    data = f"jsonl:{tmp_path}/a.jsonl"
    task = dataset.task(
        data, dataset.vocabulary("byte"), objective="mnli", eval_data=data, name="kept_error"
    )
    with pytest.raises(Exception, match="the label is true"):
        list(task.get_dataset(LENGTHS, "validation", shuffle=False))
    assert isinstance(evaluation_data.raised_errors[0], UserError)
    assert evaluation_data.raised_errors[0].where == f"{tmp_path}/a.jsonl, line 1"


def test_a_number_of_a_record_that_is_too_large_for_seqio_stays_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"premise": "a", "hypothesis": "b", "label": -1, "idx": 10**12}) + "\n"
    )
    data = f"jsonl:{tmp_path}/a.jsonl"
    task = dataset.task(
        data,
        dataset.vocabulary("byte"),
        objective="mnli",
        eval_data=data,
        name="large_idx",
        answered=False,
    )
    (found,) = task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator()
    assert json.loads(found[evaluation_data.RECORD_NAME]) == {"idx": 10**12}
