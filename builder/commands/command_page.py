"""The page docs/reference/commands.md, rendered from the registries of both programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands.registry import PROGRAM as BUILDER
from rosetta.core.commands import PROGRAM as ROSETTA

if TYPE_CHECKING:
    from rosetta.core.command_line import Command, Program

PAGE = "docs/reference/commands.md"
_HEAD = """# Commands

*Reference. Generated from rosetta/core/commands.py and builder/commands/registry.py by
`python build.py docs`: edit there.*

`rosetta COMMAND --help` and `python3 build.py COMMAND --help` describe the options of a command.
They also describe the variables that it reads; [variables.md](variables.md) has all of them.
bash and zsh [complete the commands](image-contents.md#completion-in-bash-and-zsh) of `rosetta`.

## What all commands share

| option | meaning |
|---|---|
| `--help`, `-h` | shows the help of a command, or of the program in place of a command |
| `--version`, `-V` | shows the version, in place of a command |
| `--json` | prints one JSON document on stdout; `rosetta profile` and `spawn` do not have it |
| `--log-level LEVEL` | shows only lines of this level and above on stderr |

Results go to stdout. A dry run of `rosetta t5x`, `rosetta pax` or a script prints the notes on the
run there, too, at every level: they are part of its result. All other notes, progress and warnings
go to stderr:

| level | lines on stderr |
|---|---|
| `debug` | also what helps to find a fault, see below |
| `info` | notes, progress and warnings (the default) |
| `warning` | warnings, such as a switch that cannot be used and what is used in its place |
| `error` | nothing but the error line |

Every level shows the error line of a failure, and every level hides secrets. `debug` shows:

- each command that is started, with its arguments
- which file or variable sets each value of a preset
- which entries of the builder's cache are used or made, with their keys
- the traceback of an unexpected error

On a terminal, a bar shows work whose length is known, with the time left where it can be estimated:
reading, converting, generating, evaluating, searching a plan and installing packages. Elsewhere, a
line comes each 30 s or at each part.

`--log-level` sets `ROSETTA_LOG_LEVEL` for the processes that a command starts: a trainer, a
container, or a job of `rosetta submit`. The scripts read this variable. T5X and Paxml also write
log lines of their own, through the library absl. They follow the level only if `--log-level` or
`ROSETTA_LOG_LEVEL` sets it; otherwise they keep upstream's level.

Every command ends with one of these [exit statuses](public-api.md#exit-statuses).
"""


def render_page() -> str:
    """Return the text of docs/reference/commands.md."""
    return "\n".join([_HEAD, _render_program(ROSETTA), _render_program(BUILDER)])


def _render_program(program: Program) -> str:
    lines = [f"## {program.name}", "", program.description, ""]
    for group, heading in program.groups.items():
        lines += [f"### {program.name}: {heading}", "", "| command | what it does | example |"]
        lines += ["|---|---|---|"]
        commands = [command for command in program.commands if command.group == group]
        lines += [*(_render_command(program, command) for command in commands), ""]
    return "\n".join(lines)


def _render_command(program: Program, command: Command) -> str:
    summary = f"{command.summary[:1].upper()}{command.summary[1:]}. {command.details}".rstrip()
    examples = [f"`{example}`" for example in program.format_examples(command)]
    return f"| `{command.name}` | {summary} | {'<br>'.join(examples)} |"
