"""GLUE and SuperGLUE from JSON lines: the texts and metrics of the package t5, on local files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("seqio", "t5")

import seqio
import tensorflow as tf

from rosetta.data import glue_records
from rosetta.t5x import dataset, evaluation_data
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = dataset.vocabulary("byte")
LENGTHS = {"inputs": 512, "targets": 64}
_ANSWERS = [{"text": "b", "idx": 0, "label": 1}, {"text": "c", "idx": 1, "label": 0}]
_PAIR = {"sentence1": "Ann sings.", "sentence2": "She sings."}
_PREMISE = {"premise": "Ann sings.", "hypothesis": "She sings."}
# name: the record, the inputs and the targets of its rows.
RECORDS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "glue_cola": ({"sentence": "Go.", "label": 1}, "cola sentence: Go.", ["acceptable"]),
    "glue_sst2": ({"sentence": "fine", "label": 0}, "sst2 sentence: fine", ["negative"]),
    "glue_mrpc": (
        {**_PAIR, "label": 1},
        "mrpc sentence1: Ann sings. sentence2: She sings.",
        ["equivalent"],
    ),
    "glue_qqp": (
        {"question1": "a", "question2": "b", "label": 1},
        "qqp question1: a question2: b",
        ["duplicate"],
    ),
    "glue_stsb": (
        {**_PAIR, "label": 2.57},
        "stsb sentence1: Ann sings. sentence2: She sings.",
        ["2.6"],
    ),
    "glue_mnli_matched": (
        {**_PREMISE, "label": 1},
        "mnli hypothesis: She sings. premise: Ann sings.",
        ["neutral"],
    ),
    "super_glue_copa": (
        {"premise": "p", "choice1": "a", "choice2": "b", "question": "effect", "label": 1},
        "copa choice1: a choice2: b premise: p question: effect",
        ["choice2"],
    ),
    "super_glue_wic": (
        {**_PAIR, "word": "sing", "label": True, "start1": 4},
        "wic sentence1: Ann sings. sentence2: She sings. word: sing",
        ["True"],
    ),
    "super_glue_wsc": (
        {
            "text": "Ann saw that she won",
            "label": True,
            "target": {
                "span1_text": "Ann",
                "span1_index": 0,
                "span2_text": "she",
                "span2_index": 3,
            },
        },
        "wsc: Ann saw that *she* won",
        ["Ann"],
    ),
    "super_glue_multirc": (
        {
            "idx": 0,
            "passage": {
                "text": "p",
                "questions": [{"question": "q", "idx": 0, "answers": _ANSWERS}],
            },
        },
        "multirc question: q answer: b paragraph: p",
        ["True", "False"],
    ),
    "super_glue_record": (
        {
            "idx": 0,
            "passage": {"text": "Ann left.", "entities": [{"start": 0, "end": 2}]},
            "qas": [{"query": "@placeholder left", "idx": 0, "answers": [{"text": "Ann"}]}],
        },
        "record query: @placeholder left entities: Ann passage: Ann left.",
        ["Ann"],
    ),
}


@pytest.fixture(autouse=True)
def _forget_tasks() -> Any:
    yield
    for name in [*RECORDS, "glue", "super_glue"]:
        seqio.TaskRegistry.remove(name)
        seqio.MixtureRegistry.remove(name)


def _write(path: Path, record: Any) -> None:
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def _register(name: str, data: str) -> Any:
    return dataset.task(f"task:{name}", VOCABULARY, eval_data=data)


def _read_examples(task: Any) -> list[dict[str, Any]]:
    data = task.get_dataset(LENGTHS, "validation", shuffle=False)
    return list(data.as_numpy_iterator())


@pytest.mark.parametrize("name", RECORDS)
def test_the_texts_of_a_file(name: str, tmp_path: Path) -> None:
    record, inputs, targets = RECORDS[name]
    benchmark = "super_glue" if name.startswith("super") else "glue"
    local = glue_records.BENCHMARKS[benchmark][name.removeprefix(f"{benchmark}_")]
    _write(tmp_path / "a.jsonl", record)
    task = _register(local.seqio_name, f"jsonl:{tmp_path}/a.jsonl")
    examples = _read_examples(task)
    assert examples[0]["inputs_pretokenized"].decode() == inputs
    assert [each["targets_pretokenized"].decode() for each in examples] == targets
    assert VOCABULARY.decode(examples[0]["targets"].tolist()) == targets[0]
    assert task.metric_fns


def _evaluate(task: Any, answers: list[str]) -> dict[str, float]:
    """Return the metrics of answers, as SeqIO's evaluator computes them."""
    examples = _read_examples(task)
    targets = [
        task.postprocess_fn(each["targets_pretokenized"].decode(), example=each, is_target=True)
        for each in examples
    ]
    predictions = [
        task.postprocess_fn(answer, example=each, is_target=False)
        for answer, each in zip(answers, examples, strict=True)
    ]
    metrics: dict[str, float] = {}
    for function in task.metric_fns:
        metrics |= function(targets, predictions)
    return metrics


def test_multirc_is_measured_by_answer_and_by_question(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", RECORDS["super_glue_multirc"][0])
    task = _register("super_glue_multirc_v102", f"jsonl:{tmp_path}/a.jsonl")
    # One of one true answer is found, and one false answer is taken for true: F1 = 2 / 3.
    assert _evaluate(task, ["True", "True"]) == {
        "f1": pytest.approx(200 / 3),
        "exact_match": pytest.approx(0.0),
    }
    assert _evaluate(task, ["True", "False"])["exact_match"] == pytest.approx(100.0)


def test_record_is_measured_by_words_and_as_a_whole(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", RECORDS["super_glue_record"][0])
    task = _register("super_glue_record_v102", f"jsonl:{tmp_path}/a.jsonl")
    assert _evaluate(task, ["Ann Bob"]) == {"em": 0.0, "f1": pytest.approx(200 / 3)}


def test_the_folder_of_a_benchmark_is_a_mixture(tmp_path: Path) -> None:
    for name in ("glue_cola", "glue_sst2"):
        _write(tmp_path / f"{name.removeprefix('glue_')}.jsonl", RECORDS[name][0])
    mixture = _register("glue_v002_proportional", f"jsonl:{tmp_path}")
    assert [task.name for task in mixture.tasks] == ["glue_cola", "glue_sst2"]


def test_a_task_trains_on_a_file_in_random_order(tmp_path: Path) -> None:
    sentences = [f"sentence {number}" for number in range(20)]
    records = [json.dumps({"sentence": text, "label": 0}) for text in sentences]
    (tmp_path / "train.jsonl").write_text("\n".join(records), encoding="utf-8")
    task = dataset.task(
        "task:glue_cola_v002", VOCABULARY, train_files=f"jsonl:{tmp_path}/train.jsonl"
    )
    assert list(task.splits) == ["train"]

    def read(*, shuffle: bool, seed: int) -> list[str]:
        data = task.get_dataset(LENGTHS, "train", shuffle=shuffle, seed=seed)
        return [row["inputs_pretokenized"].decode() for row in data.as_numpy_iterator()]

    in_order = read(shuffle=False, seed=0)
    assert in_order == [f"cola sentence: {text}" for text in sentences]
    shuffled = read(shuffle=True, seed=1)
    assert shuffled != in_order
    assert sorted(shuffled) == sorted(in_order)
    assert shuffled == read(shuffle=True, seed=1) != read(shuffle=True, seed=2)


def test_wsc_trains_on_true_records_and_a_mixture_by_size(tmp_path: Path) -> None:
    true = RECORDS["super_glue_wsc"][0]
    lines = [json.dumps(true), json.dumps({**true, "label": False})]
    for split in ("train", "val"):
        (tmp_path / "WSC").mkdir(exist_ok=True)
        (tmp_path / "WSC" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    copa = json.dumps(RECORDS["super_glue_copa"][0])
    (tmp_path / "COPA").mkdir()
    (tmp_path / "COPA" / "train.jsonl").write_text(f"{copa}\n" * 3, encoding="utf-8")
    folder = f"jsonl:{tmp_path}"
    mixture = dataset.task(
        "task:super_glue_v102_proportional", VOCABULARY, train_files=folder, eval_data=folder
    )
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert rates == {"super_glue_copa": 3.0, "super_glue_wsc": 1.0}
    wsc = seqio.TaskRegistry.get("super_glue_wsc")
    assert len(list(wsc.get_dataset(LENGTHS, "train", shuffle=False))) == 1
    assert len(list(wsc.get_dataset(LENGTHS, "validation", shuffle=False))) == 2
    assert list(seqio.TaskRegistry.get("super_glue_copa").splits) == ["train"]


def test_a_bad_record_is_refused_with_its_place(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl", {"sentence": "Go.", "label": 5})
    task = _register("glue_cola_v002", f"jsonl:{tmp_path}/a.jsonl")
    evaluation_data.raised_errors.clear()
    with pytest.raises(tf.errors.OpError):
        _read_examples(task)
    errors.check_error(
        evaluation_data.raised_errors[0],
        errors.INVALID,
        where="a.jsonl, line 1",
        names="acceptable",
    )
