"""Describe everything that the table has on one variable, as text and as JSON.

`rosetta explain NAME` and the reference pages use this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core.variables import help_text, lookup, readers, value_types
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from rosetta.core.variables.declaration import Variable

_READER_NAMES = {
    readers.ROSETTA: "every command of rosetta",
    readers.BUILDER: "every command of build.py",
    readers.TRAINER: "the trainer",
    readers.IMAGE: "the programs of an image",
}
_FRAMEWORK_NAMES = {"t5x": "T5X", "pax": "Pax"}


def describe_variable(name: str) -> dict[str, Any]:
    """Return everything that the table has on a variable, as JSON.

    Args:
      name: A variable of the table.

    Returns:
      "variable", the name, and "entries", one for each meaning of the name.
    """
    entries = [variable for variable in lookup.TABLE if variable.name == name]
    return {"variable": name, "entries": [_describe_entry(entry) for entry in entries]}


def _describe_entry(variable: Variable) -> dict[str, Any]:
    """Return one entry of the table as JSON."""
    return {
        "of": _describe_owner(variable),
        "help": variable.help,
        "details": variable.details,
        "scope": variable.scope.value,
        "group": variable.group.value,
        "values": variable.type.description,
        "choices": list(variable.type.choices),
        "unit": variable.unit,
        "default": str(variable.default),
        "default_for": {reader: str(text) for reader, text in variable.default_for.items()},
        "read_by": list(variable.read_by),
        "scripts": describe_scripts(variable),
        "example": "" if variable.secret else variable.make_example(),
        "secret": variable.secret,
        "since": variable.since,
        "page": _get_page_path(variable),
    }


def _describe_owner(variable: Variable) -> str:
    """Return who gives the name the meaning of this entry."""
    if variable.scope is Scope.OTHER_PROGRAM:
        return variable.owner
    if variable.scope is Scope.SLURM_FILE:
        return "the .sub files"
    return " and ".join(_FRAMEWORK_NAMES[name] for name in variable.frameworks) or "rosetta"


def describe_meaning(variable: Variable) -> list[str]:
    """Return all sentences about what a variable does."""
    sentences = (variable.help, help_text.describe_argument(variable), variable.details)
    return [text for text in sentences if text]


def _get_page_path(variable: Variable) -> str:
    """Return the page with more about a variable, as a path in the repository; "" for none."""
    return f"docs/{variable.page}" if variable.page else ""


def describe_scripts(variable: Variable) -> list[str]:
    """Return the scripts and .sub files that read a variable.

    A script that stands for a command reads the same variables as that command.
    """
    scripts = (
        script
        for script, command in readers.SCRIPT_COMMANDS.items()
        if not {script, command}.isdisjoint(variable.read_by)
    )
    return [*(f"{script}.sh" for script in scripts), *describe_slurm_files(variable)]


def describe_slurm_files(variable: Variable) -> list[str]:
    """Return the .sub files that read a variable."""
    return [name for name in variable.read_by if name in readers.SLURM_FILES]


def describe_readers(variable: Variable) -> list[str]:
    """Return the commands and programs that read a variable, as users call them.

    Commands of one program are merged: "rosetta t5x pretrain, finetune".
    """
    commands: dict[str, list[str]] = {}
    for reader in variable.read_by:
        if reader in readers.SLURM_FILES or reader in readers.SCRIPT_COMMANDS:
            continue
        if reader in _READER_NAMES or reader.startswith("the "):
            commands[_READER_NAMES.get(reader, reader)] = []
            continue
        program, _, command = reader.rpartition(" ")
        program = program if program.startswith("build.py") else f"rosetta {program}".strip()
        commands.setdefault(program, []).append(command)
    return [f"{program} {', '.join(names)}".strip() for program, names in commands.items()]


def format_explanation(description: dict[str, Any]) -> str:
    """Return the result of describe_variable as text."""
    name = description["variable"]
    entries = [variable for variable in lookup.TABLE if variable.name == name]
    return "\n\n".join(map(_format_entry, entries))


def _format_entry(variable: Variable) -> str:
    """Return one entry of the table as text: the meaning, then one row for each fact."""
    is_name = isinstance(variable.type, value_types.Name)
    rows = {
        "of": _describe_owner(variable),
        "group": variable.group.value,
        "values": variable.type.description,
        "names": ", ".join(variable.type.choices) if is_name else "",
        "unit": variable.unit,
        "default": help_text.describe_defaults(variable),
        "example": "" if variable.secret else variable.make_example(),
        "read by": "; ".join(describe_readers(variable)),
        "scripts": ", ".join(describe_scripts(variable)),
        "since": variable.since,
        "more": _get_page_path(variable),
    }
    columns, width = help_text.get_terminal_width(), max(map(len, rows)) + 2
    meaning = " ".join(describe_meaning(variable))
    lines = [variable.name, *help_text.wrap_text(meaning, columns, "  ", "  ")]
    for title, text in rows.items():
        if text:
            lines += help_text.wrap_text(text, columns, f"  {title:<{width}}", " " * (width + 2))
    return "\n".join(lines)
