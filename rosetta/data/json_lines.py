"""Lines of JSON: the object on a line, and the text under one of its fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rosetta.data import bad_records
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE_OBJECT_PER_LINE = "put one JSON object on each line (jq -c . FILE > NEW.jsonl)"
UNWRAP_ARRAY = "write its elements one a line: jq -c '.[]' FILE > NEW.jsonl"
TYPE_NAMES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
_MAX_NAMED_FIELDS = 8  # that are named

_field_option = "TEXT_FIELD (T5X), fdl.TEXT_FIELD (Pax) or --field (rosetta data, rosetta vocab)"


def set_field_option(name: str) -> None:
    """Set what the user names the text's field by: an option or a variable of the command that
    runs.
    """
    global _field_option  # noqa: PLW0603 (of the process)
    _field_option = name


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
      RecordFault: there is none.
    """
    begins_array = line.lstrip()[:1] == b"["
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        if begins_array:
            raise RecordFault("a JSON array, not one object a line", UNWRAP_ARRAY) from None
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordFault(
            f"not valid JSON: {what}", ONE_OBJECT_PER_LINE, "not valid JSON"
        ) from None
    if not isinstance(record, dict):
        raise RecordFault(
            f"not a JSON object but {TYPE_NAMES[type(record)]}",
            UNWRAP_ARRAY if begins_array else ONE_OBJECT_PER_LINE,
        )
    return record


def get_text(record: Mapping[str, Any], field: str) -> Any:
    """Return the text under a field of a record.

    Raises:
      RecordFault: there is none.
    """
    text = record.get(field)
    if isinstance(text, str):
        return text
    if field in record:
        what = f"{field!r} is {TYPE_NAMES.get(type(text), type(text).__name__)}, not text"
        raise RecordFault(what, f"give it text, or name another field with {_field_option}")
    raise describe_missing_field(field, record)


def describe_missing_field(field: str, names: Any) -> RecordFault:
    """Return the fault of a record without a text field; `names` are those it has."""
    known = sorted(map(str, names))
    listed = ", ".join(known[:_MAX_NAMED_FIELDS]) + (
        ", and more" if len(known) > _MAX_NAMED_FIELDS else ""
    )
    return RecordFault(
        f"no text under {field!r} (it has: {listed or 'nothing'})",
        f"name the field with {_field_option}",
        f"no text under {field!r}",
    )


def parse_text(line: bytes, field: str, path: str) -> str:
    """Return the text of one JSON line of a file.

    Raises:
      RecordFault: there is none.
    """
    return bad_records.replace_surrogates(get_text(parse_object(line), field), path)
