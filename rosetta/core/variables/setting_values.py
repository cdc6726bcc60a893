"""Read the values of variables, and refuse values that are not of the declared type."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from rosetta.core import secrets, value_parsing, xla_flags
from rosetta.core.errors import INVALID, UNKNOWN, UserError
from rosetta.core.variables import lookup, value_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rosetta.core.variables.declaration import Variable


def parse_value(variable: Variable, text: str) -> Any:
    """Return a value of a variable as its Python type: bool, int, float, str, list or tuple.

    Raises:
      UserError: The text is not a valid value.
    """
    name, kind = variable.name, variable.type
    if isinstance(kind, value_types.TruthValue):
        return value_parsing.parse_truth_value(name, text)
    if isinstance(kind, (value_types.WholeNumber, value_types.Number)):
        return _parse_number(variable, kind, text)
    if isinstance(kind, value_types.Choice):
        return value_parsing.parse_choice(name, text, kind.choices)
    if isinstance(kind, value_types.NameList):
        return value_parsing.parse_list(name, text, choices=kind.choices)
    if isinstance(kind, value_types.StepRange):
        return value_parsing.parse_step_range(name, text)
    if isinstance(kind, value_types.XlaFlags):
        return xla_flags.split_flags(text, name)
    for value_type, parse in _PARSERS.items():
        if isinstance(kind, value_type):
            return parse(variable, text)
    return text


def read_setting(variables: Mapping[str, str], name: str, reader: str = "") -> Any:
    """Return the value of a variable, or its default if the variable is not set or empty.

    Args:
      variables: For example the environment.
      name: A variable of the table.
      reader: The command, script or framework that reads it, see `lookup.find_variable`.

    Returns:
      The value as its type; None if the variable is not set and has no fixed default.

    Raises:
      UserError: The value is not valid.
    """
    variable = lookup.find_variable(name, reader)
    text = variables.get(name) or variable.get_default_value(reader)
    return parse_value(variable, text) if text else None


def read_settings(variables: Mapping[str, str], reader: str) -> dict[str, Any]:
    """Return name -> value of every variable that a command or script reads, see read_setting.

    Raises:
      UserError: A value is not valid.
    """
    return {
        variable.name: read_setting(variables, variable.name, reader)
        for variable in lookup.list_variables(reader)
    }


def check_settings(variables: Mapping[str, str], reader: str) -> None:
    """Check the value of every variable that a command, script or program reads.

    Args:
      variables: For example the environment; others in it are ignored.
      reader: See `lookup.list_variables`.

    Raises:
      UserError: A value is not valid. The error is for the first one in the order of the table.
    """
    for variable in lookup.list_variables(reader):
        if text := variables.get(variable.name):
            parse_value(variable, text)


def parse_setting_word(word: str, reader: str, others: str) -> tuple[str, str]:
    """Return the name and the value of an argument NAME=VALUE.

    Args:
      word: The argument.
      reader: A command of `rosetta t5x` or `rosetta pax`.
      others: How to set parameters that have no variable, for the error.

    Raises:
      UserError: The argument is not NAME=VALUE, or the command does not read the variable.
    """
    name, equals, value = word.partition("=")
    where = f"rosetta {reader}"
    if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        example = lookup.list_settings(reader)[0].make_example()
        raise UserError(
            f"{word!r} is not a valid setting",
            where,
            f"write NAME=VALUE, as in {example}",
            kind=INVALID,
            value=word,
        )
    if name not in lookup.list_accepted_names(reader):
        suggestion = _suggest_setting(name, reader)
        advice = f"did you mean {suggestion}?" if suggestion else f"see {where} --help"
        raise UserError(
            f"there is no setting {name!r}", where, f"{advice} ({others})", kind=UNKNOWN, value=name
        )
    return name, value


def _suggest_setting(name: str, reader: str) -> str:
    """Return the setting of a command that an unknown name is probably meant for; "" for none."""
    settings = lookup.list_settings(reader)
    renamed = lookup.find_variable_by_argument(name, settings)
    if renamed:
        return renamed.name
    beginnings = [variable.name for variable in settings if name.startswith(f"{variable.name}_")]
    if beginnings:
        return max(beginnings, key=len)
    similar_names = difflib.get_close_matches(name, lookup.list_accepted_names(reader), 1)
    return similar_names[0] if similar_names else ""


def _parse_number(
    variable: Variable, kind: value_types.WholeNumber | value_types.Number, text: str
) -> float:
    """Return a number within the limits of its type."""
    if isinstance(kind, value_types.WholeNumber):
        maximum = value_parsing.LARGEST if kind.maximum is None else kind.maximum
        return value_parsing.parse_whole_number(
            variable.name, text, minimum=kind.minimum, maximum=maximum
        )
    example = variable.example or variable.get_default_value()
    number = value_parsing.parse_number(
        variable.name, text, above_zero=kind.above_zero, example=example
    )
    if kind.zero_or_above_one and 0 < number <= 1:
        raise _make_invalid_error(
            variable, text, "number", f"give a number above 1, as in {example}, or 0"
        )
    if kind.maximum is not None and number > kind.maximum:
        raise _make_invalid_error(
            variable, text, "number", f"give at most {kind.maximum:g}, as in {example}"
        )
    return number


def _parse_path(variable: Variable, text: str) -> str:
    """Return the path unchanged, because its reader resolves relative paths."""
    scheme = value_parsing.split_scheme(text)[0]
    if "\0" in text or (scheme and not getattr(variable.type, "remote", False)):
        remedy = f"name {variable.type.description} of this machine"
        raise _make_invalid_error(variable, text, "path", remedy)
    return text


def _parse_address(variable: Variable, text: str) -> str:
    """Return an address."""
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*:[^\s\[\]]+", text):
        # An address may have a password.
        shown = secrets.hide_forms(text)
        raise _make_invalid_error(variable, shown, "address", f"give {variable.type.description}")
    return text


def _parse_mesh_shape(variable: Variable, text: str) -> list[int] | None:
    """Return the number of GPUs of each axis; None for the text "None", which sets no mesh."""
    word = text.strip()
    if word == "None":
        return None
    inside = word[1:-1] if word[:1] + word[-1:] in ("[]", "()") else word
    items = [item.strip() for item in inside.rstrip(" ,").split(",")]
    if not all(re.fullmatch(r"[1-9][0-9]{0,8}", item) for item in items):
        remedy = f"give {variable.type.description}, as in {variable.make_example()}"
        raise _make_invalid_error(variable, text, "mesh", remedy)
    return [int(item) for item in items]


def _parse_mounts(variable: Variable, text: str) -> str:
    """Return the mounts unchanged, because pyxis reads them."""
    kind = variable.type
    pattern = getattr(kind, "pattern", "")
    mounts = text.split(",") if isinstance(kind, value_types.MountList) else [text]
    if not all(re.fullmatch(pattern, mount) for mount in mounts):
        remedy = f"give {kind.description}, as in {variable.make_example()}"
        raise _make_invalid_error(variable, text, "mount", remedy)
    return text


def _make_invalid_error(variable: Variable, text: str, type_name: str, remedy: str) -> UserError:
    """Return the error for a text that is not a valid value of a type."""
    what = f"{text!r} is not a valid {type_name}"
    return UserError(what, variable.name, remedy, kind=INVALID, value=text)


# Type that only variables have -> the parser of its values.
_PARSERS: Mapping[type[value_types.ValueType], Callable[[Variable, str], Any]] = {
    value_types.MeshShape: _parse_mesh_shape,
    value_types.File: _parse_path,
    value_types.Folder: _parse_path,
    value_types.Address: _parse_address,
    value_types.Mount: _parse_mounts,
}
