from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.data import causal_features, data_spec, pipeline, prompts, task_records, vocabularies
from tests.support import corpora, errors

if TYPE_CHECKING:
    from pathlib import Path

BYTES = vocabularies.Vocabulary("byte", 0)
PASSAGE = "“I know,” said Ann,  her sister\u2019s sister "
LAMBADA = {"inputs": '"I know," said Ann,  her sister\'s', "targets": " sister"}
BOOLQ: list[dict[str, Any]] = [
    {"passage": "Sheep eat grass.", "question": "do sheep eat grass", "label": 1, "idx": 0},
    {"passage": "Sheep eat grass.", "question": "do sheep eat lions", "label": 0, "idx": 1},
    {"passage": "Of the test split.", "question": "is it known", "label": -1, "idx": 2},
]


def write_lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return f"jsonl:{path}"


def read_examples(data: str, objective: str, split: str = "test") -> list[dict[str, Any]]:
    return [
        {name: record[name] for name in ("inputs", "targets")}
        for record in task_records.read_examples(data_spec.parse_spec(data), objective, split)
    ]


def test_lambada_is_the_same_from_text_json_and_the_prepared_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(f"{PASSAGE}\n\nAlone\n", encoding="utf-8")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    corpora.write_tfds_folder(
        tmp_path,
        "my_lambada/lm",
        {
            "test": [
                [
                    corpora.encode_example(
                        inputs=[LAMBADA["inputs"].encode()], targets=[LAMBADA["targets"].encode()]
                    )
                ]
            ]
        },
    )
    for data in (
        f"text:{tmp_path}/a.txt",
        write_lines(tmp_path / "a.jsonl", [{"text": PASSAGE}]),
        "tfds:my_lambada/lm",
    ):
        assert read_examples(data, "lambada") == [LAMBADA], data


def test_boolq_is_formatted_from_both_layouts(tmp_path: Path) -> None:
    expected = [
        {"inputs": "Sheep eat grass.\nquestion: do sheep eat grass?\nanswer:", "targets": "yes"},
        {"inputs": "Sheep eat grass.\nquestion: do sheep eat lions?\nanswer:", "targets": "no"},
    ]
    assert read_examples(write_lines(tmp_path / "a", BOOLQ), "boolq") == expected
    own = [
        {
            "passage": record["passage"],
            "question": record["question"],
            "answer": record["label"] == 1,
            "title": "Sheep",
        }
        for record in BOOLQ[:2]
    ]
    assert read_examples(write_lines(tmp_path / "b", own), "boolq") == expected


@pytest.mark.parametrize(
    ("objective", "record", "named"),
    [
        ("lambada", {"texts": "no such field"}, "text"),
        ("boolq", {"passage": "p", "question": "q", "label": "maybe"}, "label"),
        ("boolq", {"question": "q", "label": 1}, "passage"),
    ],
)
def test_a_record_of_another_task_is_refused(
    tmp_path: Path, objective: str, record: dict[str, Any], named: str
) -> None:
    with errors.expect_user_error(errors.INVALID, where="line 1", names=(objective, named)):
        read_examples(write_lines(tmp_path / "a", [record]), objective)


def test_running_text_holds_no_questions(tmp_path: Path) -> None:
    data = corpora.write_text_files(tmp_path, ["some text"] * 3)
    with errors.expect_user_error(errors.CONFLICT, where="DATA=text:", value="text", names="boolq"):
        pipeline.Batches(corpora.make_recipe(data, "boolq", extra_ids=0), 1)


def test_a_prompt_has_no_end_token_and_a_long_one_keeps_its_question(tmp_path: Path) -> None:
    recipe = corpora.make_recipe(
        write_lines(tmp_path / "a", BOOLQ),
        "boolq",
        extra_ids=0,
        inputs=24,
        targets=8,
        shuffle=False,
    )
    batch = causal_features.CausalBatches(recipe, 2, bos=1).make_batch(0)
    for row, (record, answer) in enumerate(zip(BOOLQ, ("yes", "no"), strict=False)):
        shown = f"question: {record['question']}?\nanswer:"[-24:]
        tokens = BYTES.encode([shown + answer])[0]
        count = len(tokens)
        assert batch["labels"][row].tolist() == [*tokens, *[0] * (32 - count)]
        assert batch["ids"][row, : count + 1].tolist() == [1, *tokens]
        assert batch["weights"][row].tolist() == [0.0] * 24 + [1.0] * len(answer) + [0.0] * (
            8 - len(answer)
        )
        assert batch["paddings"][row].tolist() == [0.0] * count + [1.0] * (32 - count)


@pytest.mark.parametrize(
    ("label", "target"),
    [("1", "yes"), ("0", "no"), ("True", "yes"), ("false", "no"), ("-1", None), ("", None)],
)
def test_boolq_takes_a_label_as_text(label: str, target: str | None) -> None:
    record = prompts.format_boolq({"passage": "p", "question": "q", "label": label})
    assert (record and record["targets"]) == target


@pytest.mark.parametrize("label", ["2", "yes", "1.0", [1]])
def test_boolq_refuses_other_labels(label: Any) -> None:
    with pytest.raises(ValueError, match="label"):
        prompts.format_boolq({"passage": "p", "question": "q", "label": label})
