"""Find variables in the table: by name, by reader, or by purpose."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rosetta.core.variables import readers
from rosetta.core.variables.declaration import Group, Scope, Variable
from rosetta.core.variables.other_programs import OTHER_PROGRAMS
from rosetta.core.variables.pax_settings import PAX_SETTINGS
from rosetta.core.variables.program_settings import PROGRAM_SETTINGS
from rosetta.core.variables.shared_settings import SHARED_SETTINGS
from rosetta.core.variables.slurm_file_settings import SLURM_FILE_SETTINGS
from rosetta.core.variables.t5x_settings import T5X_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TABLE: tuple[Variable, ...] = (
    *T5X_SETTINGS,
    *PAX_SETTINGS,
    *SHARED_SETTINGS,
    *PROGRAM_SETTINGS,
    *SLURM_FILE_SETTINGS,
    *OTHER_PROGRAMS,
)


@functools.cache
def list_variables(reader: str) -> tuple[Variable, ...]:
    """Return the variables that a command, script or program reads, in the order of the table.

    Args:
      reader: One of the names of `readers`, or the name of a script without its suffix.
    """
    command = readers.SCRIPT_COMMANDS.get(reader)
    wanted = {reader, command} if command else {reader}
    return tuple(variable for variable in TABLE if not wanted.isdisjoint(variable.read_by))


@functools.cache
def list_settings(reader: str) -> tuple[Variable, ...]:
    """Return the settings of a run among the variables that a command or script reads."""
    return tuple(variable for variable in list_variables(reader) if variable.scope is Scope.RUN)


@functools.cache
def list_accepted_names(reader: str) -> tuple[str, ...]:
    """Return the names that a command takes as NAME=VALUE.

    Every command of Pax takes the settings of all commands of Pax. It then refuses a setting that
    it does not read, and names the command that does.

    Args:
      reader: A command of `rosetta t5x` or `rosetta pax`.
    """
    commands = readers.PAX if reader in readers.PAX else (reader,)
    names = set[str]()
    for command in commands:
        names.update(variable.name for variable in list_settings(command))
    return tuple(dict.fromkeys(variable.name for variable in TABLE if variable.name in names))


@functools.cache
def list_training_settings(framework: str) -> tuple[Variable, ...]:
    """Return the settings of a framework's training runs, which presets and `rosetta run` take.

    Args:
      framework: "t5x" or "pax".
    """
    commands = readers.T5X_TRAINING if framework == "t5x" else readers.PAX
    return tuple(
        variable
        for variable in TABLE
        if variable.scope is Scope.RUN and not set(commands).isdisjoint(variable.read_by)
    )


def find_variable(name: str, reader: str = "") -> Variable:
    """Return the variable with a name.

    Args:
      name: A variable of the table.
      reader: The command, script or framework that reads the variable, for a name that means
        different things to different readers; "" for the first entry.

    Raises:
      KeyError: The table has no such variable.
    """
    entries = _map_names_to_entries()[name]
    command = readers.SCRIPT_COMMANDS.get(reader, reader)
    for entry in entries:
        if command in entry.read_by or command in entry.frameworks:
            return entry
    return entries[0]


def find_variable_by_argument(
    argument_name: str, variables: tuple[Variable, ...] = TABLE
) -> Variable | None:
    """Return the variable whose argument has another name in the scripts, or None.

    Args:
      argument_name: The name of the argument, such as GRAD_ACCUM.
      variables: The variables to search.
    """
    for variable in variables:
        if argument_name and variable.argument_name == argument_name:
            return variable
    return None


def is_known_variable(name: str) -> bool:
    """Return whether the table has a variable of this name."""
    return name in _map_names_to_entries()


@functools.cache
def _map_names_to_entries() -> Mapping[str, tuple[Variable, ...]]:
    """Return name -> its entries, in the order of the table."""
    entries: dict[str, tuple[Variable, ...]] = {}
    for variable in TABLE:
        entries[variable.name] = (*entries.get(variable.name, ()), variable)
    return entries


def group_variables(
    variables: tuple[Variable, ...],
) -> Iterator[tuple[Group, tuple[Variable, ...]]]:
    """Yield each group with the variables that belong to it, in the order of help texts.

    Args:
      variables: For example `list_settings(reader)`.
    """
    for group in Group:
        members = tuple(variable for variable in variables if variable.group is group)
        if members:
            yield group, members


def list_variables_in_scope(scope: Scope) -> tuple[Variable, ...]:
    """Return the variables that have one purpose, in the order of the table."""
    return tuple(variable for variable in TABLE if variable.scope is scope)


def map_settings_to_commands() -> Mapping[str, tuple[str, ...]]:
    """Return setting of a run -> the commands that read it, as the reference page lists them.

    The commands of Pax are one entry, "pax".
    """
    commands_by_name: dict[str, dict[str, None]] = {}
    for variable in list_variables_in_scope(Scope.RUN):
        for reader in variable.read_by:
            if reader in readers.RUNS:
                framework, _, command = reader.partition(" ")
                commands = commands_by_name.setdefault(variable.name, {})
                commands[command if framework == "t5x" else "pax"] = None
    return {name: tuple(commands) for name, commands in commands_by_name.items()}
