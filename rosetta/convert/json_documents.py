"""Read and write the JSON documents of models and checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, MISSING, UserError

if TYPE_CHECKING:
    from pathlib import Path


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UserError: The file is missing, does not have a JSON object, or has a field twice.
    """
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicate_fields
        )
    except FileNotFoundError:
        raise UserError(
            "the file is missing",
            str(path),
            "name the folder that has the model's files",
            kind=MISSING,
        ) from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UserError(
            "not a JSON document with an object",
            str(path),
            "download or copy it again",
            kind=DAMAGED,
        )
    return document


def reject_duplicate_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; this is an object_pairs_hook of json.loads.

    Raises:
        ValueError: A name occurs twice. JSON readers silently drop one of the two values.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def write_document(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
