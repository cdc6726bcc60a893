"""Warn of variables in the environment whose names are nearly those of variables that are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.variables import lookup, readers
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.core.variables.declaration import Variable

SHORTEST = 5  # with fewer letters, too many names are one edit from each other
_RANKS = ("SLURM_PROCID", "JAX_PROCESS_ID")


def warn(
    environment: Mapping[str, str], program: str, reader: str = "", framework: str = ""
) -> None:
    """Print a warning line for each misspelt variable, in the first process of a run alone.

    Args:
      environment: The environment.
      program: What reads variables, as users call it: "rosetta t5x pretrain".
      reader: Its name among `readers`, if it has one.
      framework: "t5x" or "pax" if it passes on the settings of a training run.
    """
    rank = next((environment[name] for name in _RANKS if environment.get(name)), "0")
    if rank != "0":
        return
    variables = (
        *lookup.read_by(readers.ROSETTA),
        *(lookup.read_by(reader) if reader else ()),
        *(lookup.settings_of_training(framework) if framework else ()),
    )
    for name, meant in find_misspelt(environment, variables):
        line = f"warning: {name} is not a variable of {program}; did you mean {meant}?"
        log.warn(line, prefix=False)


def find_misspelt(
    environment: Mapping[str, str], variables: tuple[Variable, ...]
) -> Iterator[tuple[str, str]]:
    """Yield each name in the environment that is one edit from a variable, and the variable's name.

    Names that the table has are correct, whoever reads them. So are names that end in one digit
    more than a variable's: PYTHON3.

    Args:
      environment: The environment.
      variables: Those that are read. Variables of other programs have too many neighbours: Slurm
        sets SLURM_JOBID beside SLURM_JOB_ID.
    """
    known = dict.fromkeys(
        variable.name for variable in variables if variable.scope is not Scope.OTHER_PROGRAM
    )
    for name in sorted(environment):
        if not re.fullmatch(r"[A-Za-z0-9_]+", name) or lookup.is_known(name):
            continue
        for meant in known:
            is_numbered = name[:-1] == meant and name[-1].isdigit()
            if min(len(name), len(meant)) >= SHORTEST and not is_numbered and is_edit(name, meant):
                yield name, meant
                break


def is_edit(word: str, other: str) -> bool:
    """Return whether one edit makes one word of the other.

    An edit inserts, deletes or replaces a letter, or swaps two that are next to each other.
    """
    if word == other or abs(len(word) - len(other)) > 1:
        return False
    start = 0
    while word[start : start + 1] == other[start : start + 1]:
        start += 1
    rest, other_rest = word[start:], other[start:]
    while rest and other_rest and rest[-1] == other_rest[-1]:
        rest, other_rest = rest[:-1], other_rest[:-1]
    swapped = len(rest) == 2 and rest == other_rest[::-1]
    return swapped or max(len(rest), len(other_rest)) == 1
