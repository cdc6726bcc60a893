"""Resolve a preset: put its layers on top of each other and keep the highest value of each field.

The layers are, from the lowest to the highest: what all presets share, the GPU, the preset, its
switches, its precision, the site, the environment and the command line. Each resolved value knows
where it was set and which values it replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, xla_flags
from rosetta.core.errors import MISSING, UNKNOWN, UserError
from rosetta.presets import preset_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.presets.schema import Value

# A list of switches to add to the preset, separated by commas.
SWITCHES_VARIABLE = "ROSETTA_WITH"
# A text value that begins with this is in the folder that the field `cache` names.
CACHE_PLACEHOLDER = "{cache}"


@dataclass(frozen=True)
class ResolvedValue:
    """The value that a run has for a field.

    Attributes:
        value: The value.
        origin: Where it is set: `FILE:LINE`, the name of a variable, or "command line".
        why: The reason that is given there.
        overrode: (origin, value) of the values that it replaces, the highest one first.
    """

    value: Any
    origin: str
    why: str = ""
    overrode: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ResolvedPreset:
    """All values of a run.

    Attributes:
        framework: "t5x" or "pax".
        configs: The Pax experiments of the preset; the first one is the default.
        values: Field ("precision", "xla_flags.NAME", ...) -> value.
        left_out: One line for each value that is not used because of a package's version: a
            workaround that is not needed any more, or an option that the version does not have.
    """

    framework: str
    configs: tuple[str, ...]
    values: Mapping[str, ResolvedValue]
    left_out: tuple[str, ...] = ()

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value of a field, or the default if no layer sets the field."""
        return self.values[path].value if path in self.values else default

    def group(self, name: str) -> dict[str, Any]:
        """Return name -> value of a group of fields, such as "env"."""
        return {
            path[len(name) + 1 :]: resolved.value
            for path, resolved in self.values.items()
            if path.startswith(f"{name}.")
        }


def find_installed_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_accelerator(detected_gpus: Iterable[DetectedGpu]) -> str | None:
    """Return the short name of the first GPU, None if there is no GPU that presets know."""
    first = next(iter(detected_gpus), None)
    similar = first and gpus.find_similar_gpu(first.name, first.capability)
    return similar.short_name if similar else None


def find_gpu_dependent_fields(name: str) -> tuple[str, ...]:
    """Return the fields whose value depends on the GPU.

    Args:
        name: The name or the file of a preset.

    Raises:
        UserError: See preset_files.load_preset_chain.
    """
    value_sets: list[Mapping[str, Value]] = [*preset_files.load_accelerator_values().values()]
    for layer in preset_files.load_preset_chain(name):
        value_sets += layer.by_gpu.values()
    # A dict keeps the order, and each field once.
    fields: dict[str, None] = {}
    for values in value_sets:
        fields.update(dict.fromkeys(values))
    return tuple(fields)


def resolve_preset(
    name: str,
    *,
    accelerator: str | None,
    environment: Mapping[str, Value],
    command_line: Mapping[str, Value],
    site: preset_files.Layer,
    precision: str | None = None,
    versions: Callable[[str], str | None] = find_installed_version,
) -> ResolvedPreset:
    """Return the values of a preset.

    Args:
        name: The name or the file of a preset.
        accelerator: The short name of the GPU. None for the CPU, and for GPUs that presets do not
            know.
        environment: Field -> value that the environment sets.
        command_line: Field -> value that the command line sets.
        site: The settings of the site.
        precision: The precision that the run computes in, if it is known already. It replaces the
            preset's.
        versions: Package -> version, None if the version is not known. Values that do not fit a
            version are left out.

    Raises:
        UserError: The preset, the GPU, the precision or a switch is unknown.
    """
    chain = preset_files.load_preset_chain(name)
    base_gpus = _list_base_gpus(accelerator)
    below = [preset_files.load_common_layer().values]
    below += [preset_files.load_accelerator_values()[gpu] for gpu in base_gpus]
    for layer in chain:
        below += [layer.values, *_select_gpu_values(layer, base_gpus)]
    above = [site.values, *_select_gpu_values(site, base_gpus), environment, command_line]

    # The precision and the switches are fields themselves, and each of them has a layer.
    preliminary = _merge_layers([*below, *above], versions)
    precision_values = preset_files.load_named_layers("precisions")[
        precision or preliminary["precision"].value
    ].values
    switch_origins = _collect_switches([*below, *above])
    switch_values = [
        _find_switch(switch, origin).values for switch, origin in switch_origins.items()
    ]
    # The precision is above the switches: it does not work without the values that it sets.
    stack = [*below, *switch_values, precision_values, *above]

    merged = _merge_layers(stack, versions)
    if "switches" in merged:
        merged["switches"] = replace(merged["switches"], value=list(switch_origins))
    return ResolvedPreset(
        chain[0].name,
        next((layer.configs for layer in reversed(chain) if layer.configs), ()),
        _fill_in_cache_folder(merged),
        _describe_left_out_values(stack, versions),
    )


def _list_base_gpus(accelerator: str | None) -> list[str]:
    """Return a GPU and those whose values it takes over, the GPU itself last."""
    names: list[str] = []
    while accelerator:
        gpu = gpus.get_gpu(accelerator, "--accelerator")
        names.insert(0, gpu.short_name)
        accelerator = gpu.preset_base
    return names


def _select_gpu_values(layer: preset_files.Layer, names: list[str]) -> list[Mapping[str, Value]]:
    """Return the values that a layer has for some GPUs."""
    return [layer.by_gpu[name] for name in names if name in layer.by_gpu]


def _collect_switches(layers: Iterable[Mapping[str, Value]]) -> dict[str, str]:
    """Return switch -> the origin that adds it.

    Each layer adds its switches to those of the lower layers. The value None removes the switches
    of the lower layers.
    """
    origins: dict[str, str] = {}
    for layer in layers:
        switches = layer.get("switches")
        if switches is None:
            continue
        if switches.value is None:
            origins = {}
        else:
            origins = {**origins, **dict.fromkeys(switches.value, switches.origin)}
    return origins


def _find_switch(name: str, origin: str) -> preset_files.Layer:
    """Return the layer of a switch.

    Raises:
        UserError: The switch is unknown.
    """
    switches = preset_files.load_named_layers("switches")
    if name not in switches:
        raise UserError(
            f"there is no switch {name!r}",
            origin,
            f"choose one of: {', '.join(switches)}",
            kind=UNKNOWN,
            value=name,
        )
    return switches[name]


def _merge_layers(
    layers: Iterable[Mapping[str, Value]], versions: Callable[[str], str | None]
) -> dict[str, ResolvedValue]:
    """Return field -> value of the highest layer that sets it."""
    values_by_field: dict[str, list[Value]] = {}
    for layer in layers:
        for path, value in layer.items():
            if not explain_version_mismatch(value, versions):
                values_by_field.setdefault(path, []).append(value)
    resolved = {}
    for path, values in values_by_field.items():
        *replaced, highest = values
        if highest.value is None:
            continue
        overrode = tuple((value.origin, value.value) for value in reversed(replaced))
        resolved[path] = ResolvedValue(highest.value, highest.origin, highest.why, overrode)
    return resolved


def _describe_left_out_values(
    layers: Iterable[Mapping[str, Value]], versions: Callable[[str], str | None]
) -> tuple[str, ...]:
    """Return a line for each value that does not fit the version of a package."""
    lines = []
    for layer in layers:
        for path, value in layer.items():
            if reason := explain_version_mismatch(value, versions):
                lines.append(f"{value.origin}: {path} is left out: {reason}")
    return tuple(lines)


def explain_version_mismatch(value: Value, versions: Callable[[str], str | None]) -> str:
    """Return why the version of a package rules a value out, "" if none does.

    A package whose version is not known rules nothing out.
    """
    for package, end in value.until.items():
        version = versions(package)
        if version is not None and xla_flags.parse_version(version) >= xla_flags.parse_version(end):
            return f"not needed since {package} {end}, and {version} is installed"
    for package, start in value.since.items():
        version = versions(package)
        if version is not None and xla_flags.parse_version(version) < xla_flags.parse_version(
            start
        ):
            return f"needs {package} {start}, and {version} is installed"
    return ""


def _fill_in_cache_folder(merged: dict[str, ResolvedValue]) -> dict[str, ResolvedValue]:
    """Return the values with the folder of the field `cache` instead of the placeholder.

    Raises:
        UserError: A value needs the folder, and the field is not set.
    """
    values = dict(merged)
    for path, resolved in merged.items():
        if not isinstance(resolved.value, str):
            continue
        if not resolved.value.startswith(f"{CACHE_PLACEHOLDER}/"):
            continue
        if "cache" not in merged:
            raise UserError(
                "this value needs the folder of the field `cache`, which is not set",
                f"{resolved.origin}: {path}",
                "set cache: DIR in the site's file, or give cache=DIR",
                kind=MISSING,
            )
        subfolder = resolved.value[len(CACHE_PLACEHOLDER) :]
        values[path] = replace(resolved, value=merged["cache"].value + subfolder)
    return values
