"""The file of predictions that inference writes: T5X's lines, each with the name of its record.

A gin file names `write`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders
from rosetta.health import run_results

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_NAME = "record_name"  # see evaluation_data.RECORD_NAME
_answer_counts: dict[str, int] = {}  # of this process, by the folder of the answers


def write(path: str, inferences: Any, task_ds: Any, mode: str, vocabulary: Any = None) -> None:
    """Write predictions as T5X does, and put the name of its record first in each line.

    The field of the name is called as in the record, for example "id" or "idx".

    Args:
      path: the file to write.
      inferences: what T5X predicted.
      task_ds: the data set that was predicted from.
      mode: T5X's mode of inference.
      vocabulary: as of T5X's write_inferences_to_file, like the other arguments.
    """
    fields = [
        name
        for name in task_ds.element_spec
        if name.endswith("_pretokenized") or name == RECORD_NAME
    ]
    _find_upstream_writer()(
        path, inferences, task_ds, mode, vocabulary, input_fields_to_include=fields
    )
    file = run_folders.make_path(path)
    lines = [
        json.dumps(add_record_name(json.loads(line))) for line in file.read_text().splitlines()
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    _report_answers(path, len(lines))


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
