"""Warn of variables in the environment that nothing reads, though they look like settings."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from rosetta.core import log
from rosetta.core.variables import lookup, readers
from rosetta.core.variables.declaration import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.core.variables.declaration import Variable

SHORTEST_NAME = 5  # with fewer letters, too many names are one edit from each other
PREFIX = "ROSETTA_"  # only rosetta has variables that begin with it
_SIMILAR = 0.7  # of difflib, for what follows the prefix
_ORDINARY = frozenset(("NUM_CPUS", "NUM_TPUS"))  # of clusters, one letter from NUM_GPUS
_RANKS = ("SLURM_PROCID", "JAX_PROCESS_ID")


def warn_of_unknown_variables(
    environment: Mapping[str, str], program: str, reader: str = "", framework: str = ""
) -> None:
    """Print a warning line for each unknown variable, in the first process of a run alone.

    Args:
      environment: The environment.
      program: What reads variables, as users call it: "rosetta t5x pretrain".
      reader: Its name among `readers`, if it has one.
      framework: "t5x" or "pax" if it passes on the settings of a training run from the
        environment.
    """
    rank = next((environment[name] for name in _RANKS if environment.get(name)), "0")
    if rank != "0":
        return
    variables = (
        *lookup.list_variables(readers.ROSETTA),
        *(lookup.list_variables(reader) if reader else ()),
        *_list_passed_on_settings(framework),
    )
    for name, meant in find_unknown_variables(environment, variables):
        advice = f"did you mean {meant}?" if meant else "see docs/reference/variables.md"
        log.warn(f"warning: {name} is not a variable of {program}; {advice}", prefix=False)


def _list_passed_on_settings(framework: str) -> tuple[Variable, ...]:
    """Return the settings of a training run that commands pass on, () without a framework."""
    settings = lookup.list_training_settings(framework) if framework else ()
    return tuple(variable for variable in settings if variable.passed_to_run)


def find_unknown_variables(
    environment: Mapping[str, str], variables: tuple[Variable, ...]
) -> Iterator[tuple[str, str]]:
    """Yield each name that nobody reads and somebody may have meant to be read, and what is meant.

    Such a name is one edit from a variable, is a word of the scripts that sets a variable of
    another name, or begins with PREFIX. What is meant is a variable, or "" if none is near.

    Names that the table has are correct, whoever reads them. So are names that end in one digit
    more than a variable's: PYTHON3.

    Args:
      environment: The environment.
      variables: Those that are read. Variables of other programs have too many neighbours: Slurm
        sets SLURM_JOBID beside SLURM_JOB_ID.
    """
    own = tuple(variable for variable in variables if variable.scope is not Scope.OTHER_PROGRAM)
    known = tuple(dict.fromkeys(variable.name for variable in own))
    for name in sorted(environment):
        is_correct = lookup.is_known_variable(name) or name in _ORDINARY
        if is_correct or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            continue
        by_word = lookup.find_variable_by_word(name, own)
        meant = by_word.name if by_word else _find_near(name, known)
        if meant or name.startswith(PREFIX):
            yield name, meant


def _find_near(name: str, known: tuple[str, ...]) -> str:
    """Return the variable that a misspelt name stands for, "" if there is none."""
    for meant in known:
        is_numbered = name[:-1] == meant and name[-1].isdigit()
        if (
            min(len(name), len(meant)) >= SHORTEST_NAME
            and not is_numbered
            and is_one_edit_apart(name, meant)
        ):
            return meant
    if not name.startswith(PREFIX):
        return ""
    ends = [other[len(PREFIX) :] for other in known if other.startswith(PREFIX)]
    near = difflib.get_close_matches(name[len(PREFIX) :], ends, 1, _SIMILAR)
    return f"{PREFIX}{near[0]}" if near else ""


def is_one_edit_apart(word: str, other: str) -> bool:
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
