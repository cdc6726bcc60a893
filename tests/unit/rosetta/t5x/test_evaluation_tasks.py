"""The tasks of SeqIO that `rosetta pax eval --list` names, on rows in the schema of their data.

The metrics are those of the package t5, compared with values that were computed by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("seqio", "t5")

import seqio
import tensorflow as tf

from rosetta.inference import evaluation_sets
from rosetta.t5x import seqio_tasks

TWO_OF_THREE = pytest.approx(200 / 3)


def _list_task_names() -> list[str]:
    """Return the names after `task:` in the list of evaluation sets."""
    commands = [item.command for item in evaluation_sets.SETS]
    return [command.rpartition("task:")[2] for command in commands if "task:" in command]


def test_the_mixtures_have_metrics() -> None:
    names = _list_task_names()
    assert len(names) == 2
    for name in names:
        mixture = seqio_tasks.find_task(name)
        measured = [task.name for task in mixture.tasks if task.metric_fns]
        assert len(measured) >= 8, name


_SENTENCES = {"sentence1": "Ann sings.", "sentence2": "She sings."}
_CASES: dict[str, tuple[dict[str, Any], str, str, list[Any], list[Any], dict[str, Any]]] = {
    # name: a row, its inputs and targets, expected values, predicted values, metrics.
    # Matthews: (1 x 1 - 0 x 1) / sqrt(1 x 2 x 1 x 2) = 0.5.
    "glue_cola_v002": (
        {"sentence": "Dogs bark.", "label": 1},
        "cola sentence: Dogs bark.",
        "acceptable",
        [1, 1, 0],
        [1, 0, 0],
        {"matthews_corrcoef": pytest.approx(50.0)},
    ),
    "glue_sst2_v002": (
        {"sentence": "a fine film", "label": 0},
        "sst2 sentence: a fine film",
        "negative",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    # F1: precision 1, recall 1/2.
    "glue_mrpc_v002": (
        {**_SENTENCES, "label": 1},
        "mrpc sentence1: Ann sings. sentence2: She sings.",
        "equivalent",
        [1, 1, 0],
        [1, 0, 0],
        {"f1": TWO_OF_THREE, "accuracy": TWO_OF_THREE},
    ),
    "glue_qnli_v002": (
        {"question": "Who?", "sentence": "Ann.", "label": 0},
        "qnli question: Who? sentence: Ann.",
        "entailment",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    "glue_rte_v002": (
        {**_SENTENCES, "label": 1},
        "rte sentence1: Ann sings. sentence2: She sings.",
        "not_entailment",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    "glue_mnli_v002": (
        {"premise": "Ann sings.", "hypothesis": "She sings.", "label": 0},
        "mnli hypothesis: She sings. premise: Ann sings.",
        "entailment",
        [2, 1, 0],
        [2, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    # A straight line, and the same order.
    "glue_stsb_v002": (
        {**_SENTENCES, "label": 2.57},
        "stsb sentence1: Ann sings. sentence2: She sings.",
        "2.6",
        [1.0, 2.0, 4.0],
        [2.0, 3.0, 5.0],
        {
            "pearson_corrcoef": pytest.approx(100.0),
            "spearman_corrcoef": pytest.approx(100.0),
        },
    ),
    "super_glue_boolq_v102": (
        {"question": "is it", "passage": "It is.", "label": 1},
        "boolq passage: It is. question: is it",
        "True",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    # The means of F1 over three classes: 1, 0 and 2/3.
    "super_glue_cb_v102": (
        {"premise": "Ann sings.", "hypothesis": "She sings.", "label": 1},
        "cb hypothesis: She sings. premise: Ann sings.",
        "contradiction",
        [2, 1, 0],
        [2, 0, 0],
        {"mean_3class_f1": pytest.approx(100 * 5 / 9), "accuracy": TWO_OF_THREE},
    ),
    "super_glue_copa_v102": (
        {
            "premise": "It rained.",
            "choice1": "a",
            "choice2": "b",
            "question": "effect",
            "label": 0,
        },
        "copa choice1: a choice2: b premise: It rained. question: effect",
        "choice1",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
    "super_glue_wic_v102": (
        {**_SENTENCES, "word": "sing", "label": 0},
        "wic sentence1: Ann sings. sentence2: She sings. word: sing",
        "False",
        [1, 1, 0],
        [1, 0, 0],
        {"accuracy": TWO_OF_THREE},
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_rows_and_metrics(name: str) -> None:
    row, inputs, targets, expected, predicted, metrics = _CASES[name]
    task = seqio_tasks.find_task(name)
    assert isinstance(task, seqio.Task)
    rows = tf.data.Dataset.from_tensors({**row, "idx": 0})
    (example,) = task.preprocessors[0](rows).as_numpy_iterator()
    assert (example["inputs"].decode(), example["targets"].decode()) == (inputs, targets)
    measured: dict[str, Any] = {}
    for function in task.metric_fns:
        measured |= function(expected, predicted)
    assert measured == metrics
