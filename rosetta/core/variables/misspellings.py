"""Warn about environment variables that look like settings, but that nothing reads."""

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

SHORTEST_NAME = 5  # among shorter names, too many are one edit apart
PREFIX = "ROSETTA_"  # only variables of rosetta begin with it
_MIN_SIMILARITY = 0.7  # for difflib, which compares the texts after the prefix
# Clusters and shells set these variables, which are one letter from NUM_GPUS and MODEL.
_CORRECT_NAMES = frozenset(("MODELS", "NUM_CPUS", "NUM_TPUS"))
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
    with PREFIX. The suggestion is "" if no variable is similar.

    A name that rosetta knows as a variable is never yielded, even if another program reads it. Nor
    is the name of a variable with one more digit, such as PYTHON3.

    Args:
      environment: The environment.
      variables: The variables that are read. No name is compared with the variables of other
        programs, because two of theirs may be one edit apart: SLURM_JOBID and SLURM_JOB_ID.
    """
    compared = tuple(
        variable for variable in variables if variable.scope is not Scope.OTHER_PROGRAM
    )
    variable_names = tuple(dict.fromkeys(variable.name for variable in compared))
    for name in sorted(environment):
        is_correct = lookup.is_known_variable(name) or name in _CORRECT_NAMES
        if is_correct or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            continue
        named_as_argument = lookup.find_variable_by_argument(name, compared)
        if named_as_argument:
            suggestion = named_as_argument.name
        else:
            suggestion = _find_similar_name(name, variable_names)
        if suggestion or name.startswith(PREFIX):
            yield name, suggestion


def _find_similar_name(name: str, variable_names: tuple[str, ...]) -> str:
    """Return the variable that a misspelt name is meant for; "" if there is none."""
    for variable in variable_names:
        is_numbered = name[:-1] == variable and name[-1].isdigit()
        if (
            min(len(name), len(variable)) >= SHORTEST_NAME
            and not is_numbered
            and is_one_edit_apart(name, variable)
        ):
            return variable
    if not name.startswith(PREFIX):
        return ""
    suffixes = [
        variable.removeprefix(PREFIX) for variable in variable_names if variable.startswith(PREFIX)
    ]
    suffix = name.removeprefix(PREFIX)
    matches = difflib.get_close_matches(suffix, suffixes, n=1, cutoff=_MIN_SIMILARITY)
    return f"{PREFIX}{matches[0]}" if matches else ""


def is_one_edit_apart(word: str, other: str) -> bool:
    """Return whether one edit turns one word into the other.

    An edit inserts, deletes or replaces a letter, or swaps two neighbouring letters.
    """
    if word == other or abs(len(word) - len(other)) > 1:
        return False
    # Remove the common beginning. The loop ends, because the words differ.
    start = 0
    while word[start : start + 1] == other[start : start + 1]:
        start += 1
    rest, other_rest = word[start:], other[start:]
    # Remove the common end.
    while rest and other_rest and rest[-1] == other_rest[-1]:
        rest, other_rest = rest[:-1], other_rest[:-1]
    is_swap = len(rest) == 2 and rest == other_rest[::-1]
    # A letter that is inserted, deleted or replaced leaves at most one letter on each side.
    return is_swap or max(len(rest), len(other_rest)) == 1
