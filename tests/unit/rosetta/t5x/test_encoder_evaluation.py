"""What the evaluation and the inference of encoders measure and write, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("seqio", "t5x")

import jax.numpy as jnp
import numpy as np

from rosetta.core.errors import INVALID, MISSING
from rosetta.data import labelled_records, masking_tokens
from rosetta.t5x import dataset, encoder_metrics, evaluation_data, predictions
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"inputs": 16, "targets": 1}
# -1 is the label of a record without one.
RECORDS = [
    {"idx": 7, "premise": "a b", "hypothesis": "c", "label": 0},
    {"idx": 8, "premise": "d", "hypothesis": "e f", "label": "yes"},
    {"idx": 9, "premise": "g", "hypothesis": "h", "label": -1},
]


def read_task(
    folder: Path, *, answered: bool, records: list[dict[str, Any]] = RECORDS
) -> list[dict[str, Any]]:
    path = folder / f"{len(records)}.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    task = dataset.task(
        f"jsonl:{path}",
        dataset.vocabulary("byte"),
        objective="classification",
        eval_data=f"jsonl:{path}",
        name=f"{folder.name}_{answered}_{len(records)}",
        text_field="premise,hypothesis,label",
        labels="no,yes",
        answered=answered,
    )
    return list(task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())


def test_pairs_of_texts_are_read_with_their_labels(tmp_path: Path) -> None:
    rows = read_task(tmp_path, answered=True)
    assert [row["targets"].tolist() for row in rows] == [[1], [2]]
    vocabulary = dataset.convert_vocabulary(dataset.vocabulary("byte"))
    special = masking_tokens.find_masking_tokens(vocabulary)
    first, second = (vocabulary.encode([text])[0].tolist() for text in ("a b", "c"))
    expected = [special.start, *first, special.separator, *second, special.separator]
    assert rows[0]["inputs"].tolist() == expected
    assert labelled_records.encode_texts(("a b", "c"), vocabulary, 16).tolist() == expected
    questions = read_task(tmp_path, answered=False)
    assert [row["targets"].tolist() for row in questions] == [[1], [2], [0]]
    assert questions[2]["inputs_pretokenized"] == b"g"
    assert questions[2]["inputs_pair_pretokenized"] == b"h"
    assert json.loads(questions[2][evaluation_data.RECORD_NAME]) == {"idx": 9}


def test_records_without_labels_are_not_evaluated(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="label"):
        read_task(tmp_path, answered=True, records=RECORDS[2:])
    assert evaluation_data.raised_errors.pop().kind == MISSING


def test_a_mixture_of_hidden_tokens_has_an_end(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 2)):
        (tmp_path / f"{name}.txt").write_text(f"{name * 9}\n" * 5 * count)
    parts = [f"text:{tmp_path}/{name}.txt" for name in "ab"]
    counts: list[int] = []
    mixtures: list[Any] = [*parts, dict.fromkeys(parts, 1)]
    for data in mixtures:
        task = dataset.task(
            data,
            dataset.vocabulary("byte"),
            objective="mlm",
            eval_data=data,
            name=f"{tmp_path.name}_{len(counts)}",
        )
        rows = task.get_dataset({"inputs": 16, "targets": 16}, "validation", shuffle=False)
        counts.append(sum(1 for _ in rows.take(100)))
    assert counts[2] == counts[0] + counts[1] < 100


def test_figures_of_targets() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    targets: Any = np.array([[1, 0, 4], [0, 0, 0]], np.int32)
    logits[0, 2, 4] = 9
    logits[0, 0, 1] = -9
    figures = encoder_metrics.measure_targets(jnp.asarray(logits), jnp.asarray(targets), "x_")
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    loss = -np.log(probabilities[0, 0, 1]) - np.log(probabilities[0, 2, 4])
    np.testing.assert_allclose(figures["x_loss"], [loss, 0], rtol=1e-5, atol=1e-6)
    assert figures["x_correct"].tolist() == [1, 0]
    assert figures["x_count"].tolist() == [2, 0]
    metric = encoder_metrics.TokenMetrics(
        figures={name[2:]: np.asarray(values) for name, values in figures.items()}
    )
    assert metric.compute() == pytest.approx({"loss": loss / 2, "accuracy": 50}, rel=1e-5)


def test_metrics_of_classes_and_numbers() -> None:
    probabilities: Any = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    metric = encoder_metrics.ClassMetrics.from_model_output(
        [], (probabilities, {"target": np.array([0, 1, 1, 1])}), {}
    )
    metrics = metric.compute()
    assert metrics["loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean())
    assert metrics["accuracy"] == pytest.approx(75)
    # Precision 1, recall 2/3; Matthews: (2 x 1 - 0 x 1) / sqrt(2 x 3 x 1 x 2).
    assert metrics["f1"] == pytest.approx(80)
    assert metrics["matthews_corrcoef"] == pytest.approx(100 * 2 / np.sqrt(12))
    numbers = encoder_metrics.NumberMetrics.from_model_output(
        [], (np.array([[1.0], [2.0], [9.0]]), {"target": np.array([1.0, 3.0, 8.0])}), {}
    )
    metrics = numbers.compute()
    assert metrics["loss"] == pytest.approx(2 / 3)
    assert metrics["spearman_corrcoef"] == pytest.approx(100)
    assert metrics["pearson_corrcoef"] == pytest.approx(
        100 * np.corrcoef([1, 2, 9], [1, 3, 8])[0, 1]
    )
    assert encoder_metrics._rank([3, 1, 3, 2]).tolist() == [3.5, 1, 3.5, 2]
    constant = encoder_metrics.NumberMetrics.from_model_output(
        [], (np.ones((2, 1)), {"target": np.array([1.0, 2.0])}), {}
    )
    assert np.isnan(constant.compute()["pearson_corrcoef"])


def test_metrics_of_a_constant_prediction_and_of_no_number() -> None:
    figures = {"target": np.array([0, 1])}
    constant = encoder_metrics.ClassMetrics(predictions=[[0.9, 0.1]] * 2, figures=figures)
    assert constant.compute()["matthews_corrcoef"] == 0
    for metric in (encoder_metrics.ClassMetrics, encoder_metrics.NumberMetrics):
        with errors.expect_user_error(INVALID):
            metric(predictions=[[np.nan, np.nan]] * 2, figures=figures).compute()
    with errors.expect_user_error(INVALID):
        predictions._describe_label([np.nan, 0.5], ("no", "yes"))


def test_the_label_of_a_line() -> None:
    line = predictions._describe_label([0.25, 0.75], ("no", "yes"))
    assert line == {
        "prediction": "yes",
        "probability": 0.75,
        "probabilities": {"no": 0.25, "yes": 0.75},
    }
    assert predictions._describe_label([2.5], ()) == {"prediction": 2.5}
