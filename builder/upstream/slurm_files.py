"""Render the Slurm files of scripts/ from one template and a table of jobs, both in scripts/slurm.

Slurm copies only the batch script itself, so each file contains everything that it needs. People
submit the files from a clone, so the repository contains them ready to run. rosetta's table of
variables says which variables a file reads, and their defaults and values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rosetta.core import strict_yaml, value_parsing
from rosetta.core.errors import UserError
from rosetta.core.variables import help_text, lookup, setting_values, value_types
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rosetta.core.variables.declaration import Variable

SOURCE = "scripts/slurm"
WIDTH = 100
# A text that is not a valid value of any type with rules of its own.
_INVALID = "x://"


def render_files(root: Path) -> dict[str, str]:
    """Return the text of every Slurm file, by its path below the root of the repository."""
    template = (root / SOURCE / "job.template").read_text(encoding="utf-8")
    where = root / SOURCE / "jobs.yaml"
    table = strict_yaml.parse_document(where.read_text(encoding="utf-8"), str(where)).data
    texts: dict[str, str] = {}
    for name, job in table["jobs"].items():
        framework = table["frameworks"][job["framework"]]
        for file in (name, *job.get("copies", ())):
            text = _render_job(template, {**framework, **job}, f"{file}.sub")
            texts[f"{framework['folder']}/{file}.sub"] = text
    return texts


def _render_job(template: str, fields: dict[str, Any], file: str) -> str:
    """Return the text of one job."""
    variables = [
        variable
        for variable in lookup.list_variables(file)
        if variable.scope in (Scope.RUN, Scope.SLURM_FILE)
    ]
    blocks = {
        "options": fields["options"],
        "usage": _indent("#   ", fields["usage"]),
        "variables": _indent("#   ", _describe_variables(variables, file)),
        "note": fields["note"],
        "defaults": _indent("  ", "".join(_write_defaults(variables, file))),
        "checks": _indent("  ", "".join(_write_checks(variables))),
        "folders": _indent("  ", fields["folders"]),
    }
    words = {
        "framework": fields["framework"],
        "purpose": fields["purpose"],
        "script": fields["script"],
        "true_words": "|".join(value_parsing.TRUE_WORDS),
        "false_words": "|".join(value_parsing.FALSE_WORDS),
    }
    text = f"#!/bin/bash\n{template}"
    for name, block in blocks.items():
        text = text.replace(f"{{{{{name}}}}}\n", block)
    for name, word in words.items():
        text = text.replace(f"{{{{{name}}}}}", word)
    return text


def _describe_variables(variables: Iterable[Variable], file: str) -> str:
    """Return the lines that describe a file's own variables, as the help of a command does."""
    width = WIDTH - len("#   ")
    own = [variable for variable in variables if variable.scope is Scope.SLURM_FILE]
    lines = (line for variable in own for line in help_text.format_entry(variable, file, width))
    return "".join(f"{line}\n" for line in lines)


def _write_defaults(variables: Iterable[Variable], file: str) -> Iterable[str]:
    """Yield a line of shell for each variable with a default."""
    for variable in variables:
        default = variable.get_default_value(file)
        if default:
            if not re.fullmatch(r"[\w./-]+", default):
                raise ValueError(f"{variable.name}: quote {default!r} for the shell")
            yield f': "${{{variable.name}:={default}}}"\n'


def _write_checks(variables: Iterable[Variable]) -> Iterable[str]:
    """Yield a call of the shell's `check` for each variable that does not take every text."""
    for variable in variables:
        test = _choose_test(variable)
        if not test:
            continue
        try:
            setting_values.parse_value(variable, _INVALID)
        except UserError as error:
            value_kind = error.what.removeprefix(f"{_INVALID!r} is not a valid ")
            words = f'check {variable.name} "{value_kind}" "{error.do}"'
            separator = " " if len(words) + len(test) < WIDTH - 4 else " \\\n  "
            yield f"{words}{separator}{test}\n"


def _choose_test(variable: Variable) -> str:
    """Return the shell command that accepts the valid values of a variable, or "" for any text.

    tests/unit/builder/upstream/test_slurm_files.py compares these commands with the parsers.
    """
    kind = variable.type
    if isinstance(kind, value_types.TruthValue):
        return "is_truth_value"
    if isinstance(kind, value_types.WholeNumber):
        maximum = value_parsing.LARGEST if kind.maximum is None else kind.maximum
        return f"is_whole_number {kind.minimum} {maximum}"
    if isinstance(kind, value_types.Mount):
        test = "all_match" if isinstance(kind, value_types.MountList) else "matches"
        return f"{test} '{kind.pattern}'"
    if isinstance(kind, (value_types.File, value_types.Folder)):
        return "is_local_path"
    if type(kind) is value_types.Text:
        return ""
    raise ValueError(f"{variable.name}: a Slurm file cannot check this type of value")


def _indent(prefix: str, block: str) -> str:
    """Return a text with a prefix before each line."""
    return "".join(prefix + line for line in block.splitlines(keepends=True))
