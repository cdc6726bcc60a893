"""docs/reference/variables.md, from rosetta's table of variables."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.variables import explanation, help_text, lookup, readers, value_types
from rosetta.core.variables.declaration import Note, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rosetta.core.variables.declaration import Variable

PAGE = "docs/reference/variables.md"
_DOCS = Path(__file__).parents[2] / "docs"
_HEAD = """# Variables

*Reference: what each variable does. Generated from rosetta/core/variables by
`python build.py docs`: edit there.*

The settings of a run are words `NAME=VALUE` of `rosetta t5x` and `rosetta pax`. A setting that is
not among the words is read from the environment. The scripts read them all from the environment;
some are words of the script, too. An empty value counts as not set, if its section does not say
otherwise. A truth value is `0` or `1`; `false`, `no`, `off`, `true`, `yes` and `on` are accepted.
`rosetta explain NAME` prints the section of a variable, and the help of each command the variables
that it reads.

The names, and which commands read them, are [public](public-api.md). So is what they mean. The
last two sections are not public: they list variables of other programs, and internal ones.
`build.py docs` refuses to drop a public name. A name
that has to go is [deprecated](../project/support.md#deprecations) first. Later, delete its section
or row in this file by hand, together with its entry in the table.
"""
_FRAMEWORKS = {"t5x": "T5X", "pax": "Pax"}
_INTRODUCTIONS = {
    "T5X": "`rosetta t5x` and the scripts of T5X read these variables.",
    "Pax": "`rosetta pax` and the scripts of Pax read these variables.",
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
_READ_BY = "- **Read by:** "
_HEADING = re.compile(r"### ([A-Z][A-Z0-9_]*)")


def render() -> str:
    """Return the whole page."""
    settings = lookup.list_variables_in_scope(Scope.RUN)
    parts = [_HEAD]
    for framework, title in _FRAMEWORKS.items():
        index = [
            (group.value, " ".join(f"[{name}](#{_anchor(name)})" for name in _names(variables)))
            for group, variables in lookup.group_variables(_settings(framework))
        ]
        parts += [_open_section(title), _render_table(("subject", "variables"), index)]
    for group, variables in lookup.group_variables(settings):
        parts.append(f"## {group.value}\n")
        for name in _names(variables):
            parts += _render_section(
                tuple(variable for variable in variables if variable.name == name)
            )
    for scope in (Scope.PROGRAM, Scope.SLURM_FILE):
        rows = (_describe(variable) for variable in lookup.list_variables_in_scope(scope))
        parts += [_open_section(scope.value), _render_table(_COLUMNS, rows)]
    others = sorted(
        lookup.list_variables_in_scope(Scope.OTHER_PROGRAM),
        key=lambda variable: variable.owner.lower(),
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
            (
                (f"`{variable.name}`", variable.help)
                for variable in lookup.list_variables_in_scope(Scope.INTERNAL)
            ),
        ),
    ]
    return "\n".join(parts)


def find_public_names(page: str) -> set[tuple[str, str, str]]:
    """Return the public names of a page: section, variable, and each command that reads it.

    The section of a setting of a run is "" since it may stand in any.

    Args:
      page: The text of the page.
    """
    found: set[tuple[str, str, str]] = set()
    section = setting = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section, setting = line.removeprefix("## "), ""
        elif heading := _HEADING.fullmatch(line):
            setting = heading[1]
            found.add(("", setting, ""))
        elif setting and line.startswith(_READ_BY):
            found |= {("", setting, reader) for reader in re.findall("`([^`]+)`", line)}
        elif line.startswith("| `") and section not in _NOT_PUBLIC:
            cells = line.strip("| ").split(" | ")
            found.add((section, cells[0].strip("`"), ""))
    return found


def refuse_removals(committed: str, page: str) -> None:
    """Raise UserError if a public name of the committed page is not on the new page."""
    gone = sorted(find_public_names(committed) - find_public_names(page))
    if gone:
        section, name, reader = gone[0]
        what = f"is not read by {reader} any more" if reader else "is not in the table"
        raise UserError(
            f"{name} is public, and {what}",
            f"{PAGE}, {section or name}",
            "keep it working; to remove it after its announcement, delete it there by hand",
            kind=CONFLICT,
            value=name,
        )


def _settings(framework: str) -> tuple[Variable, ...]:
    return tuple(
        variable
        for variable in lookup.list_variables_in_scope(Scope.RUN)
        if framework in variable.frameworks or _commands(variable, framework)
    )


def _names(variables: Sequence[Variable]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variable.name for variable in variables))


def _anchor(name: str) -> str:
    """Return the anchor of a variable's heading."""
    return name.lower()


def _render_section(entries: Sequence[Variable]) -> list[str]:
    """Return the section of a setting: what it does in each framework that reads it."""
    parts = [f"### {entries[0].name}\n"]
    for variable in entries:
        if len(entries) > 1:
            names = (_FRAMEWORKS[framework] for framework in variable.frameworks)
            parts.append(f"In {' and '.join(names)}:\n")
        commands = [_commands(variable, framework) for framework in _FRAMEWORKS]
        lines = [
            f"- **What it does:** {_meaning(variable)}",
            f"- **Values:** {_values(variable)}",
            f"- **Default:** {_default(variable) or 'none'}",
            f"{_READ_BY}{', '.join(filter(None, commands))}",
        ]
        if variable.page:
            lines.append(f"- **More:** {_link(variable.page)}")
        parts.append("\n".join([*lines, ""]))
    return parts


def _commands(variable: Variable, framework: str) -> str:
    """Return the commands of a framework that read a variable, and scripts that read it alone."""
    commands = [
        f"rosetta {reader}"
        for reader in variable.read_by
        if reader in readers.RUNS and reader.startswith(f"{framework} ")
    ]
    scripts = [
        f"{reader}.sh"
        for reader in variable.read_by
        if readers.SCRIPT_COMMANDS.get(reader, "").startswith(f"{framework} ")
    ]
    return ", ".join(f"`{name}`" for name in (*commands, *scripts))


def _link(page: str) -> str:
    """Return a link to a page below docs/, by its title."""
    title = (_DOCS / page.partition("#")[0]).read_text(encoding="utf-8").splitlines()[0]
    target = posixpath.relpath(page, posixpath.dirname(PAGE).removeprefix("docs/"))
    return f"[{title.removeprefix('# ')}]({target})"


def _readers(variable: Variable) -> str:
    """Return all that reads a variable."""
    names = [*explanation.describe_readers(variable), *explanation.list_slurm_files(variable)]
    return "; ".join(names)


def _meaning(variable: Variable) -> str:
    """Return what a variable does, in all sentences that the table has."""
    text = " ".join(explanation.describe_meaning(variable))
    return re.sub(r"^([01]): ", r"`\1`: ", text)


def _describe(variable: Variable) -> tuple[str, ...]:
    """Return the cells of a row with all columns."""
    return (
        f"`{variable.name}`",
        _values(variable),
        _default(variable),
        _meaning(variable),
        _readers(variable),
    )


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
