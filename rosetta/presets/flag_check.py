"""Does XLA take every flag of every preset?

Its parser says so, on the CPU too; it ends the process at the first that it does not take.
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
    """Yield what every place sets that a run of a framework can come by, for each GPU and with
    each switch.
    """
    yield preset_files.load_common_layer().values
    yield from preset_files.load_accelerator_values().values()
    for name, layer in preset_files.load_presets().items():
        if preset_files.load_preset_chain(name)[0].name == framework:
            yield from (layer.values, *layer.by_gpu.values())
    for kind in ("precisions", "switches"):
        yield from (each.values for each in preset_files.load_named_layers(kind).values())


def collect_flags(framework: str) -> dict[str, str]:
    """Return flag as XLA_FLAGS has it -> where it is set, of all that the versions at hand do not
    leave out.
    """
    found: dict[str, str] = {}
    for body in _iterate_values(framework):
        for path, each in body.items():
            group, _, name = path.partition(".")
            if (
                group == "xla_flags"
                and each.value is not None
                and not resolution.explain_version_mismatch(each, resolution.find_installed_version)
            ):
                (flag,) = xla_flags.format_flags({name: each.value})
                found.setdefault(flag, each.origin)
    return found


def find_refused_flags(framework: str, python: str = sys.executable) -> list[str]:
    """Return a line for each flag that the XLA of an interpreter does not take, with its place.

    Raises:
      LookupError: that interpreter has no JAX, or cannot be asked.
    """
    left, found = collect_flags(framework), list[str]()
    while left and (refused := xla_flags.find_refused_flag(list(left), python)):
        wrong = [flag for flag in left if flag[2:].partition("=")[0] == refused.name]
        # Of several values of a flag, those that are refused by themselves.
        wrong = [
            flag for flag in wrong if len(wrong) == 1 or xla_flags.find_refused_flag([flag], python)
        ]
        found += [
            f"{left.pop(flag)}: {refused.what if len(wrong) == 1 else f'XLA does not take {flag}'}"
            for flag in wrong
        ]
        if not wrong:
            raise LookupError(refused.what)
    return found
