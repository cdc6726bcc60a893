"""docs/reference/variables.md, from rosetta's table of variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.variables import explanation, help_text, lookup, readers, value_types
from rosetta.core.variables.declaration import Note, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rosetta.core.variables.declaration import Variable

PAGE = "docs/reference/variables.md"
_HEAD = """# Variables

*Reference. Generated from rosetta/core/variables by `python build.py docs`: edit there.*

The settings of a run are words `NAME=VALUE` of `rosetta t5x` and `rosetta pax`. A setting that is
not among the words is read from the environment. The scripts read them all from the environment;
some are words of the script, too. An empty value counts as not set, if the table does not say
otherwise. A truth value is `0` or `1`; `false`, `no`, `off`, `true`, `yes` and `on` are accepted.
`rosetta explain NAME` prints a row of this page, and the help of each command the variables that
it reads.

The names, and which commands read them, are [public](public-api.md). So is what they mean. The
last two sections are not public: they list variables of other programs, and internal ones.
`build.py docs` refuses to drop a public name. Announce its removal in `CHANGELOG.md` one release
ahead; later, delete its row in this file by hand together with its entry in the table.
"""
_FRAMEWORKS = {"t5x": "T5X", "pax": "Pax"}
_INTRODUCTIONS = {
    "T5X": "Read by `rosetta t5x` and by the scripts of T5X.",
    "Pax": "Read by `rosetta pax` and by the scripts of Pax.",
    Scope.PROGRAM.value: "Variables of the environment that are not settings of a run.",
    Scope.SLURM_FILE.value: (
        "A job passes all other variables on to the script that it starts. The files are in "
        "`scripts/` of a clone."
    ),
    Scope.OTHER_PROGRAM.value: (
        "rosetta reads these under the meaning that their owners give them."
    ),
    Scope.INTERNAL.value: "Programs of rosetta set these for each other.",
}
_NOT_PUBLIC = (Scope.OTHER_PROGRAM.value, Scope.INTERNAL.value)
_COLUMNS = ("variable", "values", "default", "meaning", "read by")


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for framework, title in _FRAMEWORKS.items():
        parts.append(_open_section(title))
        for group, variables in lookup.in_groups(_settings(framework)):
            rows = (_describe(variable, _commands(variable, framework)) for variable in variables)
            parts += [f"### {title}: {group.value}\n", _render_table(_COLUMNS, rows)]
    for scope in (Scope.PROGRAM, Scope.SLURM_FILE):
        rows = (_describe(variable, _readers(variable)) for variable in lookup.in_scope(scope))
        parts += [_open_section(scope.value), _render_table(_COLUMNS, rows)]
    others = sorted(
        lookup.in_scope(Scope.OTHER_PROGRAM), key=lambda variable: variable.owner.lower()
    )
    parts += [
        _open_section(Scope.OTHER_PROGRAM.value),
        _render_table(
            ("variable", "owner", "meaning", "read by"),
            (
                (f"`{variable.name}`", variable.owner, variable.help, _readers(variable))
                for variable in others
            ),
        ),
        _open_section(Scope.INTERNAL.value),
        _render_table(
            ("variable", "meaning"),
            ((f"`{variable.name}`", variable.help) for variable in lookup.in_scope(Scope.INTERNAL)),
        ),
    ]
    return "\n".join(parts)


def find_public_names(page: str) -> set[tuple[str, str, str]]:
    """Return the public names of a page: section, variable, and each command that reads it.

    Args:
      page: The text of the page.
    """
    found, section = set(), ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `") and section not in _NOT_PUBLIC:
            cells = line.strip("| ").split(" | ")
            name = cells[0].strip("`")
            found |= {(section, name, reader) for reader in re.findall("`([^`]+)`", cells[-1])}
            found.add((section, name, ""))
    return found


def refuse_removals(committed: str, page: str) -> None:
    """Raise UserError if a public name of the committed page is not on the new page."""
    gone = sorted(find_public_names(committed) - find_public_names(page))
    if gone:
        section, name, reader = gone[0]
        what = f"{reader} does not read it any more" if reader else "it is not in the table"
        raise UserError(
            f"{name} is public, and {what}",
            f"{PAGE}, {section}",
            "keep it working; to remove it after its announcement, delete it there by hand",
            kind=CONFLICT,
            value=name,
        )


def _settings(framework: str) -> tuple[Variable, ...]:
    return tuple(
        variable
        for variable in lookup.in_scope(Scope.RUN)
        if framework in variable.frameworks or _commands(variable, framework)
    )


def _commands(variable: Variable, framework: str) -> str:
    """Return the commands of a framework that read a variable, and scripts that read it alone."""
    commands = [
        reader.partition(" ")[2]
        for reader in variable.read_by
        if reader in readers.RUNS and reader.startswith(f"{framework} ")
    ]
    scripts = [
        f"{reader}.sh"
        for reader in variable.read_by
        if readers.SCRIPT_COMMANDS.get(reader, "").startswith(f"{framework} ")
    ]
    return " ".join(f"`{name}`" for name in (*commands, *scripts))


def _readers(variable: Variable) -> str:
    """Return all that reads a variable."""
    names = [*explanation.describe_readers(variable), *explanation.describe_slurm_files(variable)]
    return "; ".join(names)


def _describe(variable: Variable, read_by: str) -> tuple[str, ...]:
    """Return the cells of a row with all columns."""
    meaning = f"{variable.help} {help_text.describe_word(variable)}".rstrip()
    return (f"`{variable.name}`", _values(variable), _default(variable), meaning, read_by)


def _values(variable: Variable) -> str:
    """Return which values a variable takes: choices as code, or a description."""
    kind = variable.type
    if kind.choices and isinstance(kind, (value_types.Choice, value_types.TruthValue)):
        return " ".join(f"`{choice}`" for choice in kind.choices)
    text = kind.description
    if isinstance(kind, value_types.Name) and kind.choices:
        text = f"{text}: {' '.join(f'`{choice}`' for choice in kind.choices)}"
    return f"{text}; {variable.unit}" if variable.unit else text


def _default(variable: Variable) -> str:
    text = help_text.describe_defaults(variable)
    is_value = text == variable.default and not isinstance(variable.default, Note)
    return f"`{text}`" if text and is_value else text


def _open_section(title: str) -> str:
    return f"## {title}\n\n{_INTRODUCTIONS[title]}\n"


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *rows]
    table = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]
    return "\n".join([table[0], "|---" * len(head) + "|", *table[1:], ""])
