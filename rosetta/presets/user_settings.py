"""Read the settings that a user gives for a run: environment variables and NAME=VALUE arguments.

Both become fields of a preset, see `rosetta.presets.schema`.
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
    from collections.abc import Collection, Iterable, Mapping

COMMAND_LINE = "command line"
PRESET_VARIABLE = "ROSETTA_PRESET"
PLATFORMS_VARIABLE = "JAX_PLATFORMS"
# XLA flags that replace those of the preset.
BASE_FLAGS_VARIABLE = "BASE_XLA_FLAGS"
# The value of ROSETTA_PRESET if the environment has the flags and variables of the preset already.
ALREADY_APPLIED = "given"
# Variables of the libraries that rosetta uses. They reach the run, except those that concern one
# machine or one process (see _is_passed_on).
_PASSED_VARIABLES = re.compile(
    r"(NCCL|JAX|XLA|NVTE|CUDA|CUDNN|CUBLAS|UCX|FI|OMP|WANDB|MLFLOW|HF|ROSETTA|TENSORSTORE)_[A-Z0-9_]+|TF_CPP_MIN_LOG_LEVEL|TF_FORCE_UNIFIED_MEMORY|GOOGLE_APPLICATION_CREDENTIALS"
)


def list_script_variables(framework: str) -> tuple[str, ...]:
    """Return the names of the variables that the training scripts of a framework read."""
    return tuple(variable.name for variable in lookup.list_training_settings(framework))


def map_variables_to_fields(framework: str) -> dict[str, str]:
    """Return variable of the scripts -> the field that it sets; most of them set no field."""
    return {
        variable.name: variable.preset_field
        for variable in lookup.list_training_settings(framework)
        if variable.preset_field
    }


def _is_passed_on(name: str) -> bool:
    """Return whether an environment variable may reach the run."""
    return not lookup.is_known_variable(name) or lookup.find_variable(name).passed_to_run


def is_cpu_requested(words: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether JAX_PLATFORMS asks for the CPU.

    Args:
        words: Name -> value of the command line, which takes precedence.
        environment: The environment variables.
    """
    return asks_for_cpu(words.get(PLATFORMS_VARIABLE, environment.get(PLATFORMS_VARIABLE, "")))


def override_cpu_platform(
    words: Mapping[str, str], environment: Mapping[str, str], accelerator: str | None
) -> dict[str, str]:
    """Return the settings of the command line, without JAX_PLATFORMS=cpu of the environment.

    The option --accelerator asks for a GPU, so it overrides JAX_PLATFORMS=cpu of the environment.

    Args:
        words: Name -> value of the command line.
        environment: The environment variables.
        accelerator: The value of --accelerator, None if it is not given.

    Raises:
        UserError: The command line asks for the CPU and for a GPU.
    """
    if accelerator is None or not is_cpu_requested(words, environment):
        return dict(words)
    if PLATFORMS_VARIABLE in words:
        raise UserError(
            f"this setting asks for the CPU, and --accelerator {accelerator} for a GPU",
            f"{PLATFORMS_VARIABLE}={words[PLATFORMS_VARIABLE]}",
            "leave one of them out",
            kind=CONFLICT,
            value=accelerator,
        )
    return {**words, PLATFORMS_VARIABLE: ""}


def parse_settings(words: Iterable[str], where: str) -> dict[str, str]:
    """Return name -> value of NAME=VALUE arguments.

    Args:
        words: The arguments.
        where: The command, for messages.

    Raises:
        UserError: An argument has no "=".
    """
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UserError(
                f"{word!r} is not a valid setting",
                where,
                "write NAME=VALUE, for example T5_SIZE=small, after the name of the preset",
                kind=INVALID,
                value=word,
            )
        settings[name] = value
    return settings


def read_xla_flags(environment: Mapping[str, str], origin: str = "") -> dict[str, Value]:
    """Return field -> value for the flags in BASE_XLA_FLAGS and XLA_FLAGS.

    XLA_FLAGS takes precedence.

    Args:
        environment: Name -> value of the variables.
        origin: The origin of the values; the variable if empty.

    Raises:
        UserError: A quote is not closed.
    """
    values: dict[str, Value] = {}
    for variable in (BASE_FLAGS_VARIABLE, "XLA_FLAGS"):
        for flag in xla_flags.split_flags(environment.get(variable, ""), variable):
            name, equals, value = flag.lstrip("-").partition("=")
            values[f"xla_flags.{name}"] = Value(value if equals else True, origin or variable)
    return values


def read_environment(framework: str, environment: Mapping[str, str]) -> dict[str, Value]:
    """Return field -> value that the environment variables set.

    A variable of the training scripts that is empty sets nothing.

    Raises:
        UserError: A value is not valid for its field.
    """
    values = read_xla_flags(environment)
    script_variables = list_script_variables(framework)
    for name, value in environment.items():
        if not _is_passed_on(name):
            continue
        is_script_setting = name in script_variables and bool(value)
        is_library_setting = name not in script_variables and _PASSED_VARIABLES.fullmatch(name)
        if is_script_setting or is_library_setting:
            values.update(_read_variable(framework, name, value, name))
    return values


def read_command_line(
    framework: str, words: Mapping[str, str], preset_variables: Collection[str]
) -> dict[str, Value]:
    """Return field -> value that the NAME=VALUE arguments set.

    A name is a variable of the training scripts or of a library, an XLA flag, fdl.NAME, or a field.

    Args:
        framework: "t5x" or "pax".
        words: Name -> value.
        preset_variables: The environment variables that presets set.

    Raises:
        UserError: A name is unknown, or a value is not valid for its field.
    """
    values = read_xla_flags(words, COMMAND_LINE)
    script_variables = list_script_variables(framework)
    for name, value in words.items():
        if name in ("XLA_FLAGS", BASE_FLAGS_VARIABLE):
            continue
        if name == "NUM_GPUS":
            raise UserError(
                "NUM_GPUS follows from the nodes and the GPUs of a node",
                f"NUM_GPUS={value}",
                "give --nodes and --gpus-per-node",
                kind=CONFLICT,
                value=value,
            )
        is_variable = (
            name in script_variables
            or name == SWITCHES_VARIABLE
            or _PASSED_VARIABLES.fullmatch(name)
            or name in preset_variables
        )
        if name.startswith("xla_") and schema.is_field(f"xla_flags.{name}"):
            values[f"xla_flags.{name}"] = Value(value, COMMAND_LINE)
        elif _is_field_argument(framework, name):
            values[name] = _parse_field(name, value, COMMAND_LINE, name)
        elif is_variable:
            values.update(_read_variable(framework, name, value, COMMAND_LINE))
        else:
            names = [*script_variables, *schema.FIELDS, *preset_variables, SWITCHES_VARIABLE]
            raise _make_unknown_setting_error(name, names)
    return values


def _is_field_argument(framework: str, name: str) -> bool:
    """Return whether the command line may set this field by its own name.

    Variables and XLA flags are given without the name of their group. T5X has no hyper-parameters.
    """
    if not schema.is_field(name) or name.startswith(("env.", "settings.", "xla_flags.")):
        return False
    return framework == "pax" or not name.startswith("fdl.")


def _make_unknown_setting_error(name: str, names: Collection[str]) -> UserError:
    """Return the error for a NAME=VALUE argument whose name is unknown."""
    fields = ", ".join(field for field in schema.FIELDS if field != "runs")
    remedy = f"give a variable of the training scripts, an XLA flag (xla_...), or one of: {fields}"
    if similar := difflib.get_close_matches(name, names, 1):
        remedy = f"did you mean {similar[0]}?"
    return UserError(
        f"there is no setting {name!r}", COMMAND_LINE, remedy, kind=UNKNOWN, value=name
    )


def _read_variable(framework: str, name: str, value: str, origin: str) -> dict[str, Value]:
    """Return the field and the value that a variable sets.

    Raises:
        UserError: The value is not valid.
    """
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
    """Return the value that a text is for a field.

    A batch may be a fraction, for example "0.5". A fraction stays a text.

    Args:
        path: The field.
        text: The text.
        origin: Where the value is set.
        name: The name of the variable or the argument, for messages.

    Raises:
        UserError: The text is not a valid value.
    """
    value: Any = text
    if path == "switches":
        value = parse_list(name, text)
    elif path in ("nodes", "gpus_per_node", "batch.microbatches"):
        value = parse_whole_number(name, text.strip())
    elif path.startswith(("fdl.", "mesh.", "batch.")) or path == "mounts":
        if path == "batch.per_gpu":
            # Python's literals, which are parsed next, would allow 0x10.
            parse_number(name, text.strip(), above_zero=True)
        value = fiddle_arguments.parse_literal(text.strip())
        if isinstance(value, float) and path.startswith("batch."):
            value = text
        elif isinstance(value, tuple):
            value = list(value)
    if advice := schema.find_value_problem(path, value):
        raise UserError(f"{text!r} is not a valid value", name, advice, kind=INVALID, value=text)
    return Value(value, origin)
