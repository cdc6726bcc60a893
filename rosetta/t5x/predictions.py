"""Predictions as inference writes them: T5X's lines, each with the record's own name."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rosetta.core import run_folders

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_NAME = "record_name"  # see evaluation_data.RECORD_NAME


def write(path: str, inferences: Any, task_ds: Any, mode: str, vocabulary: Any = None) -> None:
    """Write predictions as T5X does, with "id" or "idx", or however the record calls it, as the
    first field of a line.

    Arguments are those of T5X's write_inferences_to_file.
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


def _find_upstream_writer() -> Callable[..., None]:
    """Return T5X's own function: inference runs T5X's program as the main module."""
    program: Any = sys.modules["__main__"]
    if hasattr(program, "write_inferences_to_file"):
        return program.write_inferences_to_file  # type: ignore[no-any-return]
    from t5x import infer

    return infer.write_inferences_to_file  # type: ignore[no-any-return]


def add_record_name(line: dict[str, Any]) -> dict[str, Any]:
    """Return a prediction with its record's name in front, from the inputs that T5X wrote."""
    name = json.loads(line["inputs"].pop(RECORD_NAME, "{}"))
    return {**name, **line}
