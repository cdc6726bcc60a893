"""The file of predictions that inference writes: T5X's lines, each with the name of its record.

Those of an encoder have the class and its probability, or the number. A gin file names `write`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.data import data_spec, labelled_records
from rosetta.health import run_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RECORD_NAME = "record_name"  # see evaluation_data.RECORD_NAME
_answer_counts: dict[str, int] = {}  # of this process, by the folder of the answers


def write(
    path: str,
    inferences: Any,
    task_ds: Any,
    mode: str,
    vocabulary: Any = None,
    *,
    objective: str | None = None,
    labels: str | None = None,
) -> None:
    """Write predictions as T5X does, and put the name of its record first in each line.

    The field of the name is called as in the record, for example "id" or "idx".

    Args:
      path: the file to write.
      inferences: what T5X predicted.
      task_ds: the data set that was predicted from.
      mode: T5X's mode of inference.
      vocabulary: as of T5X's write_inferences_to_file, like the other arguments.
      objective: the objective of the run.
      labels: the names of the classes with commas, for classification.
    """
    is_label = objective in data_spec.LABEL_OBJECTIVES and mode != "score"
    fields = [
        name
        for name in task_ds.element_spec
        if name.endswith("_pretokenized") or name == RECORD_NAME
    ]
    # T5X makes a text of tokens, which the outputs of these heads are not.
    tokens = [[0]] * len(inferences[0]) if is_label else inferences[0]
    _find_upstream_writer()(
        path, (tokens, inferences[1]), task_ds, mode, vocabulary, input_fields_to_include=fields
    )
    file = run_folders.make_path(path)
    lines = []
    for number, text in enumerate(file.read_text().splitlines()):
        line = add_record_name(json.loads(text))
        if is_label:
            line |= _describe_label(inferences[0][number], labelled_records.split_labels(labels))
        lines.append(json.dumps(line))
    file.write_text("".join(f"{line}\n" for line in lines))
    _report_answers(path, len(lines))


def _describe_label(outputs: Sequence[float], labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a line that say what an encoder predicts.

    Args:
      outputs: the probabilities of the classes, or one number.
      labels: the names of the classes; none for a number.

    Raises:
      UserError: an output is not a finite number.
    """
    labelled_records.check_finite(outputs)
    if not labels:
        return {"prediction": float(outputs[0])}
    probabilities = dict(zip(labels, map(float, outputs), strict=True))
    prediction = max(probabilities, key=probabilities.__getitem__)
    return {
        "prediction": prediction,
        "probability": probabilities[prediction],
        "probabilities": probabilities,
    }


def _report_answers(path: str, count: int) -> None:
    """Add the answers of a file to the results of this process.

    T5X writes the answers of every 100 batches to a file of their own, in a temporary folder inside
    the folder of the answers, and joins the files at the end.
    """
    folder = os.path.dirname(os.path.dirname(path))
    _answer_counts[folder] = _answer_counts.get(folder, 0) + count
    run_results.set_result("answers", f"{_answer_counts[folder]:,}, in {folder}")


def _find_upstream_writer() -> Callable[..., None]:
    """Return T5X's own function.

    Inference runs T5X's program as the main module, whose function is the one that gin changes.
    """
    program: Any = sys.modules["__main__"]
    if hasattr(program, "write_inferences_to_file"):
        return program.write_inferences_to_file  # type: ignore[no-any-return]
    from t5x import infer

    return infer.write_inferences_to_file  # type: ignore[no-any-return]


def add_record_name(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of predictions with the record's name in front, which T5X wrote as an input."""
    name = json.loads(line["inputs"].pop(RECORD_NAME, "{}"))
    return {**name, **line}
