"""Lines of JSON: parse the object on a line, and get the text in one of its fields.

The readers of jsonl sources use this module. Those of TFRecord files and Hugging Face sets use its
messages about missing fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rosetta.data import bad_records
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ONE_OBJECT_PER_LINE = "put one JSON object on each line (jq -c . FILE > NEW.jsonl)"
UNWRAP_ARRAY = "write each element on its own line: jq -c '.[]' FILE > NEW.jsonl"
TYPE_NAMES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
_MAX_NAMED_FIELDS = 8
_JSON_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()

# How the user names the field that has the text.
_field_option = "TEXT_FIELD (T5X), fdl.TEXT_FIELD (Pax) or --field (rosetta data, rosetta vocab)"


def set_field_option(name: str) -> None:
    """Set the option or variable that messages give as the way to name the text's field."""
    global _field_option  # noqa: PLW0603 (of the process)
    _field_option = name


def write_field_option(value: str) -> str:
    """Return the option or variable with a value, as the user writes it."""
    return f"{_field_option} {value}" if _field_option.startswith("--") else f"TEXT_FIELD={value}"


def describe_field_option(count: int = 1) -> str:
    """Return how a user names the field that has the text, or the two fields of pairs.

    Args:
        count: The number of fields.
    """
    if count == 1:
        return f"name the field with {_field_option}"
    return f"name the two fields, as in INPUTS,TARGETS, with {_field_option}"


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line.

    Raises:
        RecordFault: The line is not a JSON object.
    """
    record = _parse_plain_object(line)
    if record is not None:
        return record
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        if _begins_array(line):
            raise RecordFault("a JSON array, not one object per line", UNWRAP_ARRAY) from None
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordFault(
            f"not valid JSON: {reason}", ONE_OBJECT_PER_LINE, "not valid JSON"
        ) from None
    if not isinstance(record, dict):
        remedy = UNWRAP_ARRAY if _begins_array(line) else ONE_OBJECT_PER_LINE
        raise RecordFault(f"not a JSON object but {TYPE_NAMES[type(record)]}", remedy)
    return record


def _parse_plain_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line of UTF-8 without white space before it; None for others.

    It is the one that json.loads returns, which takes twice as long.
    """
    try:
        text = line.decode()
        record, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    is_whole = end == len(text) or not text[end:].strip(_JSON_SPACE)
    return record if is_whole and isinstance(record, dict) else None


def _begins_array(line: bytes) -> bool:
    """Return whether a line begins like a JSON array."""
    return line.lstrip()[:1] == b"["


def get_text(record: Mapping[str, Any], field: str) -> str:
    """Return the text in a field of a record.

    Raises:
        RecordFault: The record does not have the field, or its value is not text.
    """
    text = record.get(field)
    if isinstance(text, str):
        return text
    if field in record:
        type_name = TYPE_NAMES.get(type(text), type(text).__name__)
        raise RecordFault(
            f"{field!r} is {type_name}, not text",
            f"give it text, or name another field with {_field_option}",
        )
    raise describe_missing_field(field, record)


def describe_missing_field(field: str, names: Iterable[Any]) -> RecordFault:
    """Return the fault of a record that lacks a text field.

    Args:
        field: The missing field.
        names: The fields that the record has.
    """
    known = sorted(map(str, names))
    listed = ", ".join(known[:_MAX_NAMED_FIELDS]) or "nothing"
    if len(known) > _MAX_NAMED_FIELDS:
        listed += ", and more"
    return RecordFault(
        f"no text under {field!r} (it has: {listed})",
        describe_field_option(),
        f"no text under {field!r}",
    )


def parse_text(line: bytes, field: str, path: str) -> str:
    """Return the text on a JSON line of a file.

    Args:
        line: The line.
        field: The field that has the text.
        path: The file, for warnings.

    Raises:
        RecordFault: The line is not a JSON object, or has no text in the field.
    """
    return bad_records.replace_surrogates(get_text(parse_object(line), field), path)
