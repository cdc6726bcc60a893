"""Choose the XLA flags and the environment variables for a run, from the preset of its model.

The launchers of T5X and Pax call `select_launch_flags` on the machine that trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import xla_flags
from rosetta.core.errors import CONFLICT, UserError
from rosetta.presets import preset_files, preset_run, resolution, user_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.presets.resolution import ResolvedPreset

# The variable of JAX that lets XLA optimise more, and compile for longer.
OPTIMIZATION_LEVEL = "JAX_OPTIMIZATION_LEVEL"
_HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"


@dataclass(frozen=True)
class LaunchFlags:
    """The XLA flags and the variables of a run.

    Attributes:
        flags: All XLA flags, those of the user last, where they take precedence.
        user_flags: The flags of the user among them.
        env: Environment variables to set. Those that are set already are not included.
        lines: What to tell the user: flags that have another name in this jaxlib, values that are
            left out, and flags that conflict with the precision.
    """

    flags: tuple[str, ...]
    user_flags: tuple[str, ...]
    env: Mapping[str, str]
    lines: tuple[str, ...]


def find_preset_for_model(framework: str, model: str) -> str:
    """Return the name of the preset for a model.

    A model without a preset gets the preset that all models of its framework extend.

    Args:
        framework: "t5x" or "pax".
        model: T5_SIZE, or the experiment, which may have a module in front.
    """
    presets = preset_files.load_presets()
    if framework == "t5x":
        return f"t5x-{model}" if f"t5x-{model}" in presets else framework
    experiment = model.rpartition(".")[2]
    return next(
        (name for name, preset in presets.items() if experiment in preset.configs), framework
    )


def _is_for_cpus(variable: str) -> bool:
    """Return whether a variable of a preset has a use on a CPU.

    The level of optimisation is for the scheduler of GPU programs.
    """
    return variable.startswith("JAX_") and variable != OPTIMIZATION_LEVEL


def resolve_default_preset(
    framework: str, model: str, *, precision: str, accelerator: str | None
) -> ResolvedPreset:
    """Return the values that a run of a model has if the user sets nothing.

    Args:
        framework: "t5x" or "pax".
        model: T5_SIZE, or the experiment.
        precision: One of schema.PRECISIONS.
        accelerator: The short name of the GPU, None for the CPU.

    Raises:
        UserError: The GPU is unknown.
    """
    return resolution.resolve_preset(
        find_preset_for_model(framework, model),
        accelerator=accelerator,
        environment={},
        command_line={},
        site=preset_files.Layer("site", {}),
        precision=precision,
    )


def resolve_default_flags(
    framework: str, model: str, *, precision: str, accelerator: str | None
) -> dict[str, Any]:
    """Return the XLA flags of `resolve_default_preset`, flag without dashes -> value."""
    return resolve_default_preset(
        framework, model, precision=precision, accelerator=accelerator
    ).group("xla_flags")


def resolve_model_preset(
    framework: str,
    model: str,
    environment: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    precision: str,
    mesh: Mapping[str, list[int]] | None = None,
    devices: int = 1,
) -> ResolvedPreset:
    """Return the values of the preset that ROSETTA_PRESET names, or else of the model's preset.

    The arguments are those of `select_launch_flags`.

    Raises:
        UserError: The preset is unknown or belongs to the other framework, or a file is not valid.
    """
    name = environment.get(user_settings.PRESET_VARIABLE) or find_preset_for_model(framework, model)
    switches = environment.get(resolution.SWITCHES_VARIABLE, "")
    resolved = resolution.resolve_preset(
        name,
        accelerator=resolution.find_accelerator(detected_gpus),
        environment=user_settings.read_environment(
            framework, {resolution.SWITCHES_VARIABLE: switches}
        ),
        command_line={},
        site=preset_files.load_site_layer(environment),
        precision=precision,
    )
    if resolved.framework != framework:
        raise UserError(
            f"this preset is for {resolved.framework}, and the run for {framework}",
            f"{user_settings.PRESET_VARIABLE}={name}",
            f"name a preset of {framework}, or unset the variable",
            kind=CONFLICT,
            value=name,
        )
    return preset_run.add_combine_thresholds(resolved, model, mesh or {}, devices)


def select_launch_flags(
    framework: str,
    model: str,
    environment: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    precision: str,
    mesh: Mapping[str, list[int]] | None = None,
    devices: int = 1,
) -> LaunchFlags:
    """Return the XLA flags and the variables of a run.

    The flags are those of the preset, followed by those of XLA_FLAGS. BASE_XLA_FLAGS replaces the
    flags of the preset. All flags have the names of the installed jaxlib.

    Args:
        framework: "t5x" or "pax".
        model: T5_SIZE, or the experiment.
        environment: The environment variables of the run. With ROSETTA_PRESET=given, they contain
            the flags and variables of the preset already.
        detected_gpus: The GPUs of this machine.
        on_cpu: Whether the run uses the CPU, which needs no variables of the CUDA libraries.
        precision: The precision that the run computes in, one of schema.PRECISIONS.
        mesh: The meshes "ici" and "dcn" of Pax, for `combine: layers`.
        devices: The number of GPUs of the run.

    Raises:
        UserError: See `resolve_model_preset`; or a variable has a quote that is not closed.
    """
    version = xla_flags.find_jaxlib_version()
    user_flags, user_notices = xla_flags.update_flags(environment.get("XLA_FLAGS", ""), version)
    if environment.get(user_settings.PRESET_VARIABLE) == user_settings.ALREADY_APPLIED:
        return LaunchFlags(tuple(user_flags), tuple(user_flags), {}, user_notices)
    resolved = resolve_model_preset(
        framework,
        model,
        environment,
        detected_gpus,
        precision=precision,
        mesh=mesh,
        devices=devices,
    )
    base_flags, _ = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(resolved.group("xla_flags"))), version
    )
    base_notices = tuple[str, ...]()
    flags_of_user = tuple[str, ...](user_flags)
    if environment.get(user_settings.BASE_FLAGS_VARIABLE):
        base_flags, base_notices = xla_flags.update_flags(
            environment[user_settings.BASE_FLAGS_VARIABLE],
            version,
            user_settings.BASE_FLAGS_VARIABLE,
        )
        flags_of_user = (*base_flags, *user_flags)
    flags = (*base_flags, *user_flags)
    env = {
        name: value
        for name, value in resolved.group("env").items()
        if name not in environment and (not on_cpu or _is_for_cpus(name))
    }
    conflicts = _describe_conflicts(precision, flags, version)
    return LaunchFlags(
        flags,
        tuple(flag for flag in flags_of_user if _HOST_DEVICES_FLAG not in flag),
        env,
        (*base_notices, *user_notices, *resolved.left_out, *conflicts),
    )


def _describe_conflicts(precision: str, flags: Sequence[str], version: str | None) -> list[str]:
    """Return a line for each flag whose value is not the one that the precision needs."""
    lines = list[str]()
    for path, needed in preset_files.load_named_layers("precisions")[precision].values.items():
        name = path.partition(".")[2]
        needed_flags, _ = xla_flags.update_flags(
            xla_flags.join_flags(xla_flags.format_flags({name: needed.value})), version
        )
        flag, _, needed_value = needed_flags[0].removeprefix("--").partition("=")
        value = xla_flags.find_flag_value(flags, flag)
        if value is not None and value.lower() != needed_value:
            lines.append(f"--{flag}={value} conflicts with {precision}: {needed.why}")
    return lines
