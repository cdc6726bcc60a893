"""Describe variables in the help of commands and scripts, and in reference pages."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING

from rosetta.core.variables import lookup, readers, value_types
from rosetta.core.variables.declaration import Note, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rosetta.core.variables.declaration import Variable

OTHER_PROGRAMS_HEADING = "Variables of other programs"
_NARROWEST, _WIDEST = 80, 100
_LONGEST_CHOICES = 60  # columns of A|B|C, which is not broken into lines
_SHOWN_BY_PLACEHOLDER = (
    value_types.Address,
    value_types.Choice,
    value_types.File,
    value_types.StepRange,
    value_types.TruthValue,
    value_types.Vocabulary,
    value_types.XlaFlags,
)


def format_command_variables(command: str, width: int = 0) -> dict[str, list[str]]:
    """Return heading -> lines that describe the variables that a command reads.

    format_program_variables describes those that every command of a program reads.

    Args:
      command: The program and the command, as users type them: "rosetta t5x pretrain".
      width: See format_sections.
    """
    words = command.removeprefix("rosetta ").split()
    names = [" ".join(words[: count + 1]) for count in range(len(words))]
    variables: dict[Variable, None] = {}  # a dict keeps the order and drops repetitions
    for name in names:
        if name != readers.BUILDER:
            variables.update(dict.fromkeys(lookup.list_variables(name)))
    return format_sections(tuple(variables), names[-1], width)


def format_program_variables(program: str, width: int = 0) -> list[str]:
    """Return lines that describe the variables that every command of a program reads.

    Args:
      program: "rosetta" or "build.py".
      width: See format_sections.
    """
    width = (width or get_terminal_width()) - 2
    variables = filter(_is_described, lookup.list_variables(program))
    return _format_entries(variables, program, width)


def format_sections(
    variables: Sequence[Variable], reader: str, width: int = 0
) -> dict[str, list[str]]:
    """Return heading -> lines that describe variables, group by group.

    The last section only lists the names of the variables of other programs.

    Args:
      variables: For example `lookup.list_variables(reader)`.
      reader: The command or script whose defaults are shown.
      width: Columns of the terminal; 0 for those of this process, from 80 to 100.
    """
    width = width or get_terminal_width()
    described = tuple(filter(_is_described, variables))
    sections = {
        group.value: _format_entries(members, reader, width - 2)
        for group, members in lookup.group_variables(described)
    }
    others = [variable.name for variable in variables if variable.scope is Scope.OTHER_PROGRAM]
    if others:
        text = f"{', '.join(dict.fromkeys(others))}. docs/reference/variables.md describes them."
        sections[OTHER_PROGRAMS_HEADING] = wrap_text(text, width - 2)
    return sections


def _format_entries(variables: Iterable[Variable], reader: str, width: int) -> list[str]:
    """Return the lines that describe variables, see format_entry."""
    lines = list[str]()
    for variable in variables:
        lines += format_entry(variable, reader, width)
    return lines


def format_entry(variable: Variable, reader: str, width: int) -> list[str]:
    """Return the lines that describe one variable: its values and default, then what it does.

    Args:
      variable: The variable.
      reader: The command or script whose default is shown.
      width: Columns.
    """
    details = "; ".join([*describe_values(variable), *describe_default(variable, reader)])
    title = f"{variable.name}={describe_placeholder(variable)}"
    head = f"{title}  ({details})" if details else title
    return [
        *wrap_text(head, width, later="      "),
        *wrap_text(variable.help, width, "    ", "    "),
    ]


def describe_default(variable: Variable, reader: str) -> list[str]:
    """Return "default: VALUE", if there is a default."""
    default = variable.get_default_text(reader)
    is_none = isinstance(default, Note) and default == "none"
    return [f"default: {default}"] if default and not is_none else []


def describe_argument(variable: Variable) -> str:
    """Return a sentence on the scripts' argument for a variable; "" if both have the same name."""
    name = variable.argument_name
    if not name:
        return ""
    return f"The scripts call this argument {name}. An environment variable {name} is not read."


def describe_placeholder(variable: Variable) -> str:
    """Return what stands for a value after NAME=: the choices if there are a few fixed ones."""
    kind = variable.type
    choices = "|".join(kind.choices) if isinstance(kind, value_types.Choice) else ""
    return choices if 0 < len(choices) <= _LONGEST_CHOICES else kind.placeholder


def describe_values(variable: Variable) -> list[str]:
    """Return the valid values of a variable, with their unit; [] if the placeholder shows them."""
    kind, unit = variable.type, variable.unit
    if isinstance(kind, value_types.Choice) and describe_placeholder(variable) == kind.placeholder:
        return [", ".join(kind.choices)]
    if isinstance(kind, _SHOWN_BY_PLACEHOLDER):
        return []
    if isinstance(kind, value_types.Folder):
        return ["or gs://BUCKET/FOLDER"] if kind.remote else []
    if isinstance(kind, value_types.Name) and kind.choices:
        return [", ".join(kind.choices)]
    if isinstance(kind, (value_types.WholeNumber, value_types.Number)):
        names = ("a whole number", "a number")
        number = next(name for name in names if kind.description.startswith(name))
        limits = kind.description[len(number) :].replace(", at least 1", "")
        return [f"{unit or number}{limits}"]
    return [kind.description.replace("a data source: ", "")]


def describe_defaults(variable: Variable) -> str:
    """Return the default, and the defaults of the commands and scripts that have another one."""
    others: dict[str, list[str]] = {}
    for reader, text in variable.default_for.items():
        name = f"{reader}.sh" if reader in readers.SCRIPT_COMMANDS else reader
        others.setdefault(text, []).append(name)
    parts = [variable.default] if variable.default else []
    parts += [f"{', '.join(names)}: {text}" for text, names in others.items()]
    return "; ".join(parts)


def get_terminal_width() -> int:
    """Return the columns of the terminal, within the limits of help texts."""
    columns = shutil.get_terminal_size((_NARROWEST, 24)).columns
    return min(max(columns, _NARROWEST), _WIDEST)


def _is_described(variable: Variable) -> bool:
    """Return whether help describes a variable, and does not only name it or leave it out."""
    return variable.scope not in (Scope.OTHER_PROGRAM, Scope.INTERNAL)


def wrap_text(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Return a text as lines of a width.

    Args:
      text: The text. Names and options in it are not broken.
      width: Columns.
      first: The beginning of the first line.
      later: The beginning of the other lines.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
