"""Warn of variables in the environment that look like settings, but that nothing reads."""

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

SHORTEST_NAME = 5  # too many names with fewer letters are one edit apart
PREFIX = "ROSETTA_"  # only variables of rosetta begin with it
_SIMILAR = 0.7  # the cutoff of difflib for the text after the prefix
# Variables of clusters that are one letter from NUM_GPUS.
_CORRECT_NAMES = frozenset(("NUM_CPUS", "NUM_TPUS"))
_RANK_VARIABLES = ("SLURM_PROCID", "JAX_PROCESS_ID")


def warn_of_unknown_variables(
    environment: Mapping[str, str], program: str, reader: str = "", framework: str = ""
) -> None:
    """Print a warning for each unknown variable, only in the first process of a run.

    Args:
      environment: The environment.
      program: The command that reads variables, as users call it: "rosetta t5x pretrain".
      reader: The name of the command in `readers`; "" for none.
      framework: "t5x" or "pax" if the command passes on the settings of a training run from the
        environment; "" if not.
    """
    rank = next((environment[name] for name in _RANK_VARIABLES if environment.get(name)), "0")
    if rank != "0":
        return
    variables = (
        *lookup.list_variables(readers.ROSETTA),
        *(lookup.list_variables(reader) if reader else ()),
        *_list_passed_on_settings(framework),
    )
    for name, suggestion in find_unknown_variables(environment, variables):
        advice = "see docs/reference/variables.md"
        if suggestion:
            advice = f"did you mean {suggestion}?"
        log.warn(f"warning: {name} is not a variable of {program}; {advice}", prefix=False)


def _list_passed_on_settings(framework: str) -> tuple[Variable, ...]:
    """Return the settings of a training run that commands pass on; () without a framework."""
    settings = lookup.list_training_settings(framework) if framework else ()
    return tuple(variable for variable in settings if variable.passed_to_run)


def find_unknown_variables(
    environment: Mapping[str, str], variables: tuple[Variable, ...]
) -> Iterator[tuple[str, str]]:
    """Yield each name that looks like a setting but is not read, and the variable to suggest.

    Such a name is one edit from a variable, is the name of an argument of the scripts, or begins
    with PREFIX. The suggestion is "" if no variable is near.

    Names in the table are correct, even if other programs read them. A variable's name with one
    more digit is correct, too, such as PYTHON3.

    Args:
      environment: The environment.
      variables: The variables that are read. Those of other programs are ignored, because correct
        names are too similar: Slurm sets SLURM_JOBID and SLURM_JOB_ID.
    """
    own = tuple(variable for variable in variables if variable.scope is not Scope.OTHER_PROGRAM)
    known = tuple(dict.fromkeys(variable.name for variable in own))
    for name in sorted(environment):
        is_correct = lookup.is_known_variable(name) or name in _CORRECT_NAMES
        if is_correct or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            continue
        renamed = lookup.find_variable_by_argument(name, own)
        suggestion = renamed.name if renamed else _find_similar_name(name, known)
        if suggestion or name.startswith(PREFIX):
            yield name, suggestion


def _find_similar_name(name: str, known: tuple[str, ...]) -> str:
    """Return the variable that a misspelt name is meant for; "" if there is none."""
    for variable in known:
        is_numbered = name[:-1] == variable and name[-1].isdigit()
        if (
            min(len(name), len(variable)) >= SHORTEST_NAME
            and not is_numbered
            and is_one_edit_apart(name, variable)
        ):
            return variable
    if not name.startswith(PREFIX):
        return ""
    ends = [other[len(PREFIX) :] for other in known if other.startswith(PREFIX)]
    near = difflib.get_close_matches(name[len(PREFIX) :], ends, 1, _SIMILAR)
    return f"{PREFIX}{near[0]}" if near else ""


def is_one_edit_apart(word: str, other: str) -> bool:
    """Return whether one edit turns one word into the other.

    An edit inserts, deletes or replaces a letter, or swaps two neighbouring letters.
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
