"""Values that variables refuse, and values that they take, by their declared types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import UserError
from rosetta.core.variables import setting_values, value_types

if TYPE_CHECKING:
    from rosetta.core.variables.declaration import Variable

NOT_NUMBERS = (
    "x",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "0x10",
    "1_0",
    "²",
    "٣",
    "1.5.2",
    "1;5",
    "1\n",
    " ",
    "9" * 5000,
    "\udcff",
    "\x1b[31m",
)
NOT_WHOLE = (*NOT_NUMBERS, "1.5", "1e3", "+1", "01")
# Values that no variable of a type takes. A type that is not here takes every text.
BAD_VALUES = {
    value_types.TruthValue: ("x", "2", "-1", "onn", "0x1", " ", "\x1b[31m"),
    value_types.WholeNumber: NOT_WHOLE,
    value_types.Number: tuple(value for value in NOT_NUMBERS if value != "9" * 5000),
    value_types.Choice: ("nosuch", " ", "\n", "\x1b[31m"),
    value_types.StepRange: ("x", "5", "5:", ":5", "5:5", "6:5", "-1:5", "1:2:3", "1.5:2", "٣:5"),
    value_types.MeshShape: ("x", "[1,8", "[1,0,1]", "[1,,1]", "[]", "[1.5,1,1]", "[-1,1,1]", "{}"),
    value_types.File: ("a\0b", "s3://bucket/file"),
    value_types.Folder: ("a\0b",),
    value_types.Address: ("x", "host/path", "https:", "https://a b", "://x"),
    value_types.Mount: ("x", "/a", "/a:b", "a:/b", "/a:/b:ro", "/a:/b,/c:/d", "/a:"),
    value_types.MountList: ("x", "/a:b", "a:/b", "/a:/b,", ",/a:/b", "/a::/b"),
    value_types.XlaFlags: (
        "'--xla_a=1",
        '--xla_a="',
        "xla_a=1 --xla_b=2",
        "--xla_a=1 x",
        "-xla_a=1",
        "--xla_a 1",
    ),
}


def bad_values(variable: Variable) -> tuple[str, ...]:
    """Return values that a variable refuses by its type and limits."""
    kind = variable.type
    values = BAD_VALUES.get(type(kind), ())
    if isinstance(kind, value_types.WholeNumber):
        values += (str(kind.minimum - 1), str((kind.maximum or 999_999_999) + 1))
    if isinstance(kind, value_types.Number) and kind.above_zero:
        values += ("0", "0.0")
    if isinstance(kind, value_types.Number) and kind.zero_or_above_one:
        values += ("0.5", "1")
    if isinstance(kind, value_types.Number) and kind.maximum is not None:
        values += (str(kind.maximum + 0.5),)
    if isinstance(kind, value_types.NameList) and kind.choices:
        first = kind.choices[0]
        values += (first.upper(), f"{first}u", f"{first},nosuch", f"{first};{first}")
    if isinstance(kind, value_types.Folder) and not kind.remote:
        values += ("gs://bucket/folder",)
    return values


def refused_values(variable: Variable) -> list[str]:
    """Return the bad values that a program can be given and refuses.

    Spaces around hyper-parameters and fields of presets are ignored.
    """
    values = [value for value in bad_values(variable) if "\0" not in value]
    if not (variable.hyper_parameter or variable.preset_field):
        return values
    return [value for value in values if not _is_taken(variable, value.strip())]


def _is_taken(variable: Variable, value: str) -> bool:
    if not value:
        return True
    try:
        setting_values.parse_value(variable, value)
    except UserError:
        return False
    return True


def good_values(variable: Variable) -> tuple[str, ...]:
    """Return values that a variable takes: its choices, its example and its defaults."""
    defaults = (variable.get_default_value(reader) for reader in ("", *variable.read_by))
    example = variable.example.strip("'")
    values = (*variable.type.choices, example, *defaults)
    return tuple(dict.fromkeys(value for value in values if value))
