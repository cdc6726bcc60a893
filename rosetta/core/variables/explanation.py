"""Describe one variable from the table of all variables, as text and as JSON.

`rosetta explain NAME` and the reference pages use this module. A name may have several entries in
the table, for example one for T5X and another for Pax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.core.variables import help_text, lookup, readers, value_types
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from rosetta.core.variables.declaration import Variable

# Readers that are not a single command, as the output calls them.
_READER_DESCRIPTIONS = {
    readers.ROSETTA: "every command of rosetta",
    readers.BUILDER: "every command of build.py",
    readers.TRAINER: "the trainer",
    readers.IMAGE: "the programs of an image",
}
_FRAMEWORK_NAMES = {"t5x": "T5X", "pax": "Pax"}


def describe_variable(name: str) -> dict[str, Any]:
    """Return all that the table says about a variable, in the form that --json prints.

    Args:
      name: The name of a variable in the table.

    Returns:
      {"variable", "entries"}: the name, and a dictionary for each of its entries.
    """
    entries = [variable for variable in lookup.TABLE if variable.name == name]
    return {"variable": name, "entries": [_describe_entry(entry) for entry in entries]}


def _describe_entry(variable: Variable) -> dict[str, Any]:
    """Return one entry of the table in the form that --json prints."""
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
        "scripts": list_scripts(variable),
        "example": "" if variable.secret else variable.make_example(),
        "secret": variable.secret,
        "since": variable.since,
        "page": _get_page_path(variable),
    }


def _describe_owner(variable: Variable) -> str:
    """Return the owner of an entry: the frameworks, rosetta, the .sub files or another program."""
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


def list_scripts(variable: Variable) -> list[str]:
    """Return the names of the scripts and .sub files that read a variable.

    A script that only starts a command reads the same variables as that command.
    """
    scripts = (
        script
        for script, command in readers.SCRIPT_COMMANDS.items()
        if not {script, command}.isdisjoint(variable.read_by)
    )
    return [*(f"{script}.sh" for script in scripts), *list_slurm_files(variable)]


def list_slurm_files(variable: Variable) -> list[str]:
    """Return the names of the .sub files that read a variable."""
    return [name for name in variable.read_by if name in readers.SLURM_FILES]


def describe_readers(variable: Variable) -> list[str]:
    """Return the commands and programs that read a variable, as users call them.

    Commands of one program are merged: "rosetta t5x pretrain, finetune".
    """
    # "rosetta t5x" -> ["pretrain", "finetune"]; a reader that is not a command -> [].
    commands: dict[str, list[str]] = {}
    for reader in variable.read_by:
        if reader in readers.SLURM_FILES or reader in readers.SCRIPT_COMMANDS:
            continue
        if reader in _READER_DESCRIPTIONS:
            commands[_READER_DESCRIPTIONS[reader]] = []
            continue
        if reader.startswith("the "):
            commands[reader] = []
            continue
        group, _, command = reader.rpartition(" ")
        if not group.startswith("build.py"):
            group = f"rosetta {group}".strip()
        commands.setdefault(group, []).append(command)
    descriptions = []
    for group, names in commands.items():
        command_names = ", ".join(names)
        descriptions.append(f"{group} {command_names}".strip())
    return descriptions


def format_explanation(description: dict[str, Any]) -> str:
    """Return the text for a variable whose description `describe_variable` returned."""
    name = description["variable"]
    entries = [variable for variable in lookup.TABLE if variable.name == name]
    return "\n\n".join(map(_format_entry, entries))


def _format_entry(variable: Variable) -> str:
    """Return one entry of the table as text: the meaning, then one row for each fact."""
    # The description of other types already says which values they take.
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
        "scripts": ", ".join(list_scripts(variable)),
        "since": variable.since,
        "more": _get_page_path(variable),
    }
    columns = help_text.get_terminal_width()
    title_width = max(map(len, rows)) + 2
    indent = " " * (2 + title_width)
    meaning = " ".join(describe_meaning(variable))
    lines = [variable.name, *help_text.wrap_text(meaning, columns, "  ", "  ")]
    for title, text in rows.items():
        if text:
            lines += help_text.wrap_text(text, columns, f"  {title:<{title_width}}", indent)
    return "\n".join(lines)
