"""Check that XLA accepts every flag that a preset, a switch, a precision or a GPU sets.

XLA's own parser checks the flags, which works on the CPU too. The parser ends the process at the
first flag that it refuses, so it runs in processes of its own. `rosetta selftest` uses the check.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rosetta.core import xla_flags
from rosetta.presets import preset_files, resolution

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rosetta.presets.schema import Value


def _iterate_values(framework: str) -> Iterator[Mapping[str, Value]]:
    """Yield the values of all layers that a run of a framework can have, on any GPU and with any
    switch.
    """
    yield preset_files.load_common_layer().values
    yield from preset_files.load_accelerator_values().values()
    for name, preset in preset_files.load_presets().items():
        if preset_files.load_preset_chain(name)[0].name == framework:
            yield from (preset.values, *preset.by_gpu.values())
    for kind in ("precisions", "switches"):
        for layer in preset_files.load_named_layers(kind).values():
            yield layer.values


def collect_flags(framework: str) -> dict[str, str]:
    """Return flag (`--NAME=VALUE`) -> where it is set, for all presets of a framework.

    Flags that do not fit the installed versions are left out.
    """
    origins: dict[str, str] = {}
    for values in _iterate_values(framework):
        for path, value in values.items():
            group, _, name = path.partition(".")
            if group != "xla_flags" or value.value is None:
                continue
            if resolution.explain_version_mismatch(value, resolution.find_installed_version):
                continue
            (flag,) = xla_flags.format_flags({name: value.value})
            origins.setdefault(flag, value.origin)
    return origins


def find_refused_flags(framework: str, python: str = sys.executable) -> list[str]:
    """Return a line, with the place, for each flag that XLA refuses.

    Args:
        framework: "t5x" or "pax".
        python: The interpreter whose jaxlib checks the flags.

    Raises:
        LookupError: The interpreter has no JAX, or did not answer.
    """
    unchecked = collect_flags(framework)
    lines = list[str]()
    while unchecked and (refusal := xla_flags.find_refused_flag(list(unchecked), python)):
        refused = [flag for flag in unchecked if flag[2:].partition("=")[0] == refusal.name]
        if len(refused) == 1:
            lines.append(f"{unchecked.pop(refused[0])}: {refusal.what}")
            continue
        # XLA names the flag but not the value: check each value on its own.
        refused = [flag for flag in refused if xla_flags.find_refused_flag([flag], python)]
        if not refused:
            raise LookupError(refusal.what)
        for flag in refused:
            problem = refusal.what if len(refused) == 1 else f"XLA refuses {flag}"
            lines.append(f"{unchecked.pop(flag)}: {problem}")
    return lines
