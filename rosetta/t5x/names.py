"""Gin settings typed for upstream's classes act on ours, where a run is ours: nobody's own gin file
falls silent.

Importing this module from a gin file is enough. The settings are carried over once all files and
bindings are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gin

from rosetta.core import log
from rosetta.t5x.run import upstream_names

if TYPE_CHECKING:
    from collections.abc import Mapping


def translate_bindings(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bindings of ours that bindings of upstream's classes stand for.

    Args:
      config: gin's own table, (scope, selector) -> {parameter: value}.

    Whoever binds upstream's name means to override the run's files, which bind ours only: the value
    wins.
    """
    found: dict[str, Any] = {}
    for (scope, selector), values in config.items():
        for parameter, value in values.items():
            ours = upstream_names.translate(selector, parameter)
            if ours is not None:
                found[f"{scope}/{ours}" if scope else ours] = value
    return found


@gin.config.register_finalize_hook
def _apply_upstream_bindings(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    names = _find_full_names()
    full = {
        (scope, names.get(selector, selector)): values
        for (scope, selector), values in config.items()
    }
    bindings = translate_bindings(config) | translate_bindings(full)
    if bindings and not any(selector.startswith("rosetta.t5x.") for _, selector in full):
        return {}  # a run of upstream's alone
    for name in bindings:
        log.info(f"{name} takes the value that was set by upstream's name for it")
    return bindings


def _find_full_names() -> dict[str, str]:
    """Return the names of configurables with their modules, by the names that gin registers.

    Gin registers what `from a import b as c` imports as a.c.
    """
    # Gin has no public way to list its registry.
    registry = gin.config._REGISTRY.items()  # noqa: SLF001
    return {
        selector: f"{configurable.wrapped.__module__}.{configurable.wrapped.__qualname__}"
        for selector, configurable in registry
    }
