"""From layers to values: which of them is in force, where it was set, and what it took the place
of.
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

SWITCHES_VARIABLE = "ROSETTA_WITH"
CACHE_PLACEHOLDER = "{cache}"


@dataclass(frozen=True)
class ResolvedValue:
    """A value in force.

    Attributes:
      value: as its field has it.
      origin: the place that set it: "presets/pax.yaml:12", another file with its line, a variable's
        name, or "command line".
      why: the reason given there.
      overrode: (place, value) of those it took the place of, the last one first.
    """

    value: Any
    origin: str
    why: str = ""
    overrode: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class ResolvedPreset:
    """All values of a run, by field ("precision", "xla_flags.NAME", ...), and the framework and
    experiments of its preset.

    `left_out` has a line for each value that the versions at hand leave out: a workaround that has
    ended, or what they are too old for.
    """

    framework: str
    configs: tuple[str, ...]
    values: Mapping[str, ResolvedValue]
    left_out: tuple[str, ...] = ()

    def get(self, path: str, default: Any = None) -> Any:
        """Return a field's value."""
        return self.values[path].value if path in self.values else default

    def group(self, name: str) -> dict[str, Any]:
        """Return name -> value of a group such as env."""
        return {
            path[len(name) + 1 :]: found.value
            for path, found in self.values.items()
            if path.startswith(f"{name}.")
        }


def find_installed_version(package: str) -> str | None:
    """Return the version of a package that is installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def find_accelerator(detected_gpus: Iterable[DetectedGpu]) -> str | None:
    """Return the short name of the GPUs at hand, None where there are none that presets know."""
    first = next(iter(detected_gpus), None)
    similar = first and gpus.find_similar_gpu(first.name, first.capability)
    return similar.short_name if similar else None


def find_gpu_dependent_fields(name: str) -> tuple[str, ...]:
    """Return the fields that some GPU has values for, of all presets and of this one; see
    preset_files.load_preset_chain for errors.
    """
    tables = [
        *preset_files.load_accelerator_values().values(),
        *(
            values
            for layer in preset_files.load_preset_chain(name)
            for values in layer.by_gpu.values()
        ),
    ]
    return tuple(dict.fromkeys(path for values in tables for path in values))


def resolve_preset(
    name: str,
    *,
    accelerator: str | None,
    environment: Mapping[str, Value],
    typed: Mapping[str, Value],
    site: preset_files.Layer,
    precision: str | None = None,
    versions: Callable[[str], str | None] = find_installed_version,
) -> ResolvedPreset:
    """Return a preset's values in force.

    Args:
      name: of the preset, or a file's path.
      accelerator: the GPUs' short name, None for the CPU, or GPUs that presets do not know.
      environment: field -> what the environment sets.
      typed: field -> what the command line sets.
      site: what the site sets.
      precision: what the run turned out to compute in, where that is known already.
      versions: package -> its version, None where it is not known; what ended there, or is not
        there yet, is left out.

    Raises:
      UserError: there is no such preset, GPU, precision or switch.
    """
    chain = preset_files.load_preset_chain(name)
    alike = _list_base_gpus(accelerator)
    below = [
        preset_files.load_common_layer().values,
        *(preset_files.load_accelerator_values()[each] for each in alike),
    ]
    for layer in chain:
        below += [layer.values, *(layer.by_gpu[each] for each in alike if each in layer.by_gpu)]
    above = [
        site.values,
        *(site.by_gpu[each] for each in alike if each in site.by_gpu),
        environment,
        typed,
    ]
    first = _merge_layers([*below, *above], versions)
    chosen = precision or first["precision"].value
    on = _collect_switches([*below, *above])
    switches = [_find_switch(name, origin) for name, origin in on.items()]
    between = [preset_files.load_named_layers("precisions")[chosen].values]
    # A switch is asked for by name; what a precision cannot do without still goes over it.
    stack = [*below, *(each.values for each in switches), *between, *above]
    left_out = tuple(
        f"{value.origin}: {path} is left out: {why}"
        for layer in stack
        for path, value in layer.items()
        if (why := explain_version_mismatch(value, versions))
    )
    merged = _merge_layers(stack, versions)
    if "switches" in merged:
        merged["switches"] = replace(merged["switches"], value=list(on))
    return ResolvedPreset(
        chain[0].name,
        next((each.configs for each in reversed(chain) if each.configs), ()),
        _fill_in_cache_folder(merged),
        left_out,
    )


def _list_base_gpus(accelerator: str | None) -> list[str]:
    """Return the GPUs whose values a GPU takes, its own last."""
    found: list[str] = []
    while accelerator:
        gpu = gpus.get_gpu(accelerator, "--accelerator")
        found.insert(0, gpu.short_name)
        accelerator = gpu.preset_base
    return found


def _collect_switches(layers: Iterable[Mapping[str, Value]]) -> dict[str, str]:
    """Switch -> the place that turns it on: they add up over the layers, and null takes out those
    below.
    """
    found: dict[str, str] = {}
    for layer in layers:
        if each := layer.get("switches"):
            found = (
                {**found, **dict.fromkeys(each.value, each.origin)}
                if each.value is not None
                else {}
            )
    return found


def _find_switch(name: str, origin: str) -> preset_files.Layer:
    known = preset_files.load_named_layers("switches")
    if name not in known:
        raise UserError(
            f"there is no switch {name!r}",
            origin,
            f"choose of {', '.join(known)}",
            kind=UNKNOWN,
            value=name,
        )
    return known[name]


def _merge_layers(
    layers: Iterable[Mapping[str, Value]], versions: Callable[[str], str | None]
) -> dict[str, ResolvedValue]:
    found: dict[str, list[Value]] = {}
    for layer in layers:
        for path, value in layer.items():
            if not explain_version_mismatch(value, versions):
                found.setdefault(path, []).append(value)
    return {
        path: ResolvedValue(
            values[-1].value,
            values[-1].origin,
            values[-1].why,
            tuple((each.origin, each.value) for each in reversed(values[:-1])),
        )
        for path, values in found.items()
        if values[-1].value is not None
    }


def explain_version_mismatch(value: Value, versions: Callable[[str], str | None]) -> str:
    """Return why the versions at hand leave a value out, "" where they do not; a package that is
    not here leaves nothing out.
    """
    for package, end in value.until.items():
        there = versions(package)
        if there is not None and xla_flags.parse_version(there) >= xla_flags.parse_version(end):
            return f"with {package} {there} it is no longer needed, since {end}"
    for package, start in value.since.items():
        there = versions(package)
        if there is not None and xla_flags.parse_version(there) < xla_flags.parse_version(start):
            return f"{package} {there} has it not, before {start}"
    return ""


def _fill_in_cache_folder(merged: dict[str, ResolvedValue]) -> dict[str, ResolvedValue]:
    """Return the values with the cache's folder in its place."""
    made = dict(merged)
    for path, found in merged.items():
        if isinstance(found.value, str) and found.value.startswith(f"{CACHE_PLACEHOLDER}/"):
            if "cache" not in merged:
                raise UserError(
                    "it lies in the folder that `cache` names, and none is named",
                    f"{found.origin}: {path}",
                    "set cache: DIR in the site's file, or cache=DIR",
                    kind=MISSING,
                )
            folder = merged["cache"].value
            made[path] = ResolvedValue(
                folder + found.value[len(CACHE_PLACEHOLDER) :],
                found.origin,
                found.why,
                found.overrode,
            )
    return made
