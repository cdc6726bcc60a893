"""What the environment and the command line set of a preset's fields: variables that people know,
and NAME=VALUE words.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from rosetta.core import xla_flags
from rosetta.core.errors import CONFLICT, INVALID, UNKNOWN, UserError
from rosetta.core.value_parsing import asks_for_cpu, parse_list, parse_number, parse_whole_number
from rosetta.core.variables import lookup, setting_values
from rosetta.pax.run import fiddle_arguments
from rosetta.presets import schema
from rosetta.presets.resolution import SWITCHES_VARIABLE
from rosetta.presets.schema import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMMAND_LINE = "command line"
PRESET_VARIABLE = "ROSETTA_PRESET"
PLATFORMS_VARIABLE = "JAX_PLATFORMS"
BASE_FLAGS_VARIABLE = "BASE_XLA_FLAGS"  # in the place of the preset's flags
ALREADY_APPLIED = (
    "given"  # as the preset's name: flags and variables stand in the environment already
)
# Those of programs below ours: what begins so is passed on, but for what is of one machine or one
# process.
_PASSED_VARIABLES = re.compile(
    r"(NCCL|JAX|XLA|NVTE|CUDA|CUDNN|CUBLAS|UCX|FI|OMP|WANDB|HF|ROSETTA|TENSORSTORE)_[A-Z0-9_]+|TF_CPP_MIN_LOG_LEVEL|TF_FORCE_UNIFIED_MEMORY|GOOGLE_APPLICATION_CREDENTIALS"
)


def list_script_variables(framework: str) -> tuple[str, ...]:
    """Return the variables that a framework's scripts read."""
    return tuple(variable.name for variable in lookup.list_training_settings(framework))


def map_variables_to_fields(framework: str) -> dict[str, str]:
    """Return variable of the scripts -> the field of a preset that it sets."""
    return {
        variable.name: variable.preset_field
        for variable in lookup.list_training_settings(framework)
        if variable.preset_field
    }


def _is_passed_on(name: str) -> bool:
    """Return whether a variable of the environment may reach the run."""
    return not lookup.is_known_variable(name) or lookup.find_variable(name).passed_to_run


def is_cpu_requested(words: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether a run is to do without cards, as JAX_PLATFORMS of the command line says, or
    else of the environment.
    """
    return asks_for_cpu(words.get(PLATFORMS_VARIABLE, environment.get(PLATFORMS_VARIABLE, "")))


def override_cpu_platform(
    words: Mapping[str, str], environment: Mapping[str, str], accelerator: str | None
) -> dict[str, str]:
    """Return words that go over JAX_PLATFORMS=cpu of the environment where a card is named.

    Args:
      words: name -> value of the command line.
      environment: variables.
      accelerator: of --accelerator, None where it is not given.

    Raises:
      UserError: the command line names a card and the CPU.
    """
    if accelerator is None or not is_cpu_requested(words, environment):
        return dict(words)
    if PLATFORMS_VARIABLE in words:
        raise UserError(
            f"it is a run on the CPU, and --accelerator {accelerator} is a card",
            f"{PLATFORMS_VARIABLE}={words[PLATFORMS_VARIABLE]}",
            "leave one of them out",
            kind=CONFLICT,
            value=accelerator,
        )
    return {**words, PLATFORMS_VARIABLE: ""}


def parse_settings(words: Iterable[str], where: str) -> dict[str, str]:
    """Return name -> value of NAME=VALUE words.

    UserError for one that is none; where: the command.
    """
    found = {}
    for word in words:
        name, equals, found[name] = word.partition("=")
        if not equals:
            raise UserError(
                f"{word!r} is no setting",
                where,
                "write NAME=VALUE, as in T5_SIZE=small, after the preset's name",
                kind=INVALID,
                value=word,
            )
    return found


def read_xla_flags(environment: Mapping[str, str], origin: str = "") -> dict[str, Value]:
    """Return what BASE_XLA_FLAGS and XLA_FLAGS set, the latter over the former.

    UserError where a quote is not closed.
    """
    found: dict[str, Value] = {}
    for variable in (BASE_FLAGS_VARIABLE, "XLA_FLAGS"):
        for flag in xla_flags.split_flags(environment.get(variable, ""), variable):
            name, equals, value = flag.lstrip("-").partition("=")
            found[f"xla_flags.{name}"] = Value(value if equals else True, origin or variable)
    return found


def read_environment(framework: str, given: Mapping[str, str]) -> dict[str, Value]:
    """Return field -> what the variables of an environment set; an empty one sets nothing.

    Raises:
      UserError: a value is none of its field's.
    """
    found = read_xla_flags(given)
    known = list_script_variables(framework)
    for name, value in given.items():
        if _is_passed_on(name) and (
            (name in known and value) or (name not in known and _PASSED_VARIABLES.fullmatch(name))
        ):
            found.update(_read_variable(framework, name, value, name))
    return found


def read_command_line(
    framework: str, words: Mapping[str, str], sets: Iterable[str]
) -> dict[str, Value]:
    """Return field -> what NAME=VALUE words set: variables of the scripts, flags of XLA, fdl.NAME,
    and fields of presets.

    Args:
      framework: t5x or pax.
      words: name -> value.
      sets: names of variables that the preset sets.

    Raises:
      UserError: there is no such name, or a value is none of its field's.
    """
    found = read_xla_flags(words, COMMAND_LINE)
    for name, value in words.items():
        if name in ("XLA_FLAGS", BASE_FLAGS_VARIABLE):
            continue
        if name == "NUM_GPUS":
            raise UserError(
                "it follows from nodes, and GPUs of a node",
                f"NUM_GPUS={value}",
                "give --nodes and --gpus-per-node",
                kind=CONFLICT,
                value=value,
            )
        if name.startswith("xla_") and schema.is_field(f"xla_flags.{name}"):
            found[f"xla_flags.{name}"] = Value(value, COMMAND_LINE)
        elif (
            schema.is_field(name)
            and not name.startswith(("env.", "settings.", "xla_flags."))
            and (framework == "pax" or not name.startswith("fdl."))
        ):
            found[name] = _parse_field(name, value, COMMAND_LINE, name)
        elif (
            name in list_script_variables(framework)
            or name == SWITCHES_VARIABLE
            or _PASSED_VARIABLES.fullmatch(name)
            or name in sets
        ):
            found.update(_read_variable(framework, name, value, COMMAND_LINE))
        else:
            known = [*list_script_variables(framework), *schema.FIELDS, *sets, SWITCHES_VARIABLE]
            near = difflib.get_close_matches(name, known, 1)
            do = (
                f"did you mean {near[0]}?"
                if near
                else (
                    "it takes variables of the scripts, flags (xla_...), "
                    f"{', '.join(each for each in schema.FIELDS if each != 'runs')}"
                )
            )
            raise UserError(
                f"there is no setting {name!r}", COMMAND_LINE, do, kind=UNKNOWN, value=name
            )
    return found


def _read_variable(framework: str, name: str, value: str, origin: str) -> dict[str, Value]:
    if name in ("XLA_FLAGS", BASE_FLAGS_VARIABLE):
        return {}
    if name == SWITCHES_VARIABLE:
        return {
            "switches": Value(
                parse_list(name, value),
                SWITCHES_VARIABLE if origin == name else origin,
            )
        }
    if path := map_variables_to_fields(framework).get(name):
        setting_values.parse_value(lookup.find_variable(name, framework), value.strip())
        return {path: _parse_field(path, value, origin, name)}
    group = "settings" if name in list_script_variables(framework) else "env"
    return {f"{group}.{name}": Value(value, origin)}


def _parse_field(path: str, text: str, origin: str, name: str) -> Value:
    """Return a value of a field, from text. A batch may be a fraction, which stays text."""
    value: Any = text
    if path == "switches":
        value = parse_list(name, text)
    elif path in ("nodes", "gpus_per_node", "batch.microbatches"):
        value = parse_whole_number(name, text.strip())
    elif path.startswith(("fdl.", "mesh.", "batch.")) or path == "mounts":
        if path == "batch.per_gpu":
            parse_number(name, text.strip(), above_zero=True)  # which is no 0x10, as Python's are
        value = fiddle_arguments.parse_literal(text.strip())
        if isinstance(value, float) and path.startswith("batch."):
            value = text
        elif isinstance(value, tuple):
            value = list(value)
    if advice := schema.find_value_problem(path, value):
        raise UserError(f"{text!r} is not a valid value", name, advice, kind=INVALID, value=text)
    return Value(value, origin)
