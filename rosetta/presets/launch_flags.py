"""What a launcher takes of a preset: flags of XLA and variables, for a model on the GPUs at
hand.
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

_HOST_DEVICES_FLAG = "xla_force_host_platform_device_count"


@dataclass(frozen=True)
class LaunchFlags:
    """What a run gets.

    Attributes:
      flags: of XLA, those of the user last.
      typed: of them, those of the user.
      env: variables to set; those that are set are not among them.
      lines: what to say: each of the user's flags that is another today, and each that a precision
        does not go with.
    """

    flags: tuple[str, ...]
    typed: tuple[str, ...]
    env: Mapping[str, str]
    lines: tuple[str, ...]


def find_preset_for_model(framework: str, model: str) -> str:
    """Return the preset for a model: T5_SIZE, or an experiment; where there is none, what all of
    its framework share.
    """
    last = model.rpartition(".")[2]
    known = preset_files.load_presets()
    if framework == "t5x":
        return f"t5x-{model}" if f"t5x-{model}" in known else framework
    return next((name for name, each in known.items() if last in each.configs), framework)


def resolve_default_flags(
    framework: str, model: str, *, precision: str, accelerator: str | None
) -> dict[str, Any]:
    """Return the options of XLA of a model's own preset, flag without dashes -> value: what a run
    gets that nobody has set anything for.

    Raises:
      UserError: presets know no such GPU.
    """
    return resolution.resolve_preset(
        find_preset_for_model(framework, model),
        accelerator=accelerator,
        environment={},
        typed={},
        site=preset_files.Layer("site", {}),
        precision=precision,
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
    """Return the values of the preset that ROSETTA_PRESET names, else of the model's own; see use.

    Raises:
      UserError: there is none of this name, it is another framework's, or a file is wrong.
    """
    name = environment.get(user_settings.PRESET_VARIABLE) or find_preset_for_model(framework, model)
    chosen = user_settings.read_environment(
        framework, {resolution.SWITCHES_VARIABLE: environment.get(resolution.SWITCHES_VARIABLE, "")}
    )
    found = resolution.resolve_preset(
        name,
        accelerator=resolution.find_accelerator(detected_gpus),
        environment=chosen,
        typed={},
        site=preset_files.load_site_layer(environment),
        precision=precision,
    )
    if found.framework != framework:
        raise UserError(
            f"it is one of {found.framework}",
            f"{user_settings.PRESET_VARIABLE}={name}",
            f"name one of {framework}, or unset it",
            kind=CONFLICT,
            value=name,
        )
    return preset_run.add_combine_thresholds(found, model, mesh or {}, devices)


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
    """Return what a run gets: the preset's flags, in whose place BASE_XLA_FLAGS stands, then those
    of XLA_FLAGS, all as the jaxlib at hand takes them.

    Args:
      framework: t5x or pax.
      model: T5_SIZE, or an experiment.
      environment: the run's; ROSETTA_PRESET=given says that flags and variables stand in it
        already.
      detected_gpus: at hand.
      on_cpu: whether it runs on the CPU, which has no use for variables of CUDA's libraries.
      precision: what it computes in, one of schema.PRECISIONS.
      mesh: of Pax, "ici" and "dcn", where thresholds are to derive from layers.
      devices: GPUs of the run.

    Raises:
      UserError: see values; or a quote in a variable is not closed.
    """
    version = xla_flags.find_jaxlib_version()
    own, said = xla_flags.update_flags(environment.get("XLA_FLAGS", ""), version)
    if environment.get(user_settings.PRESET_VARIABLE) == user_settings.ALREADY_APPLIED:
        return LaunchFlags(tuple(own), tuple(own), {}, said)
    found = resolve_model_preset(
        framework,
        model,
        environment,
        detected_gpus,
        precision=precision,
        mesh=mesh,
        devices=devices,
    )
    base, _ = xla_flags.update_flags(
        xla_flags.join_flags(xla_flags.format_flags(found.group("xla_flags"))), version
    )
    typed, before = tuple[str, ...](own), tuple[str, ...]()
    if environment.get(user_settings.BASE_FLAGS_VARIABLE):
        base, before = xla_flags.update_flags(
            environment[user_settings.BASE_FLAGS_VARIABLE],
            version,
            user_settings.BASE_FLAGS_VARIABLE,
        )
        typed = (*base, *own)
    flags = (*base, *own)
    env = {
        name: value
        for name, value in found.group("env").items()
        if name not in environment and (not on_cpu or name.startswith("JAX_"))
    }
    return LaunchFlags(
        flags,
        tuple(each for each in typed if _HOST_DEVICES_FLAG not in each),
        env,
        (*before, *said, *found.left_out, *_describe_conflicts(precision, flags, version)),
    )


def _describe_conflicts(precision: str, flags: Sequence[str], version: str | None) -> list[str]:
    """Return a line for each flag that goes against what a precision needs."""
    wanted = preset_files.load_named_layers("precisions")[precision].values
    lines = list[str]()
    for path, each in wanted.items():
        name = path.partition(".")[2]
        today, _ = xla_flags.update_flags(
            xla_flags.join_flags(xla_flags.format_flags({name: each.value})), version
        )
        written, _, needed = today[0].removeprefix("--").partition("=")
        there = xla_flags.find_flag_value(flags, written)
        if there is not None and there.lower() != needed:
            lines.append(f"--{written}={there} goes against {precision}: {each.why}")
    return lines
