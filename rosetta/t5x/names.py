"""Translation of gin settings of T5X's classes to rosetta's classes.

A user's own gin file that sets, for example, t5x.trainer.Trainer.num_microbatches stays effective
in a run with rosetta's classes. A gin file only needs to import this module. The settings are
translated after all files and bindings are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gin

from rosetta.core import log
from rosetta.t5x.run import upstream_names

if TYPE_CHECKING:
    from collections.abc import Mapping


def translate_bindings(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bindings of rosetta's classes for the bindings of T5X's classes.

    These values override those of the run's files: the files bind rosetta's names only, so that
    T5X's names come from the user.

    Args:
      config: gin's own table, (scope, selector) -> {parameter: value}.
    """
    translated: dict[str, Any] = {}
    for (scope, selector), values in config.items():
        for parameter, value in values.items():
            name = upstream_names.translate(selector, parameter)
            if name is not None:
                translated[f"{scope}/{name}" if scope else name] = value
    return translated


@gin.config.register_finalize_hook
def _apply_upstream_bindings(config: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the bindings to add to gin's table; none if the run uses T5X's classes only."""
    names = _find_full_names()
    full_table = {
        (scope, names.get(selector, selector)): values
        for (scope, selector), values in config.items()
    }
    bindings = translate_bindings(config) | translate_bindings(full_table)
    if not any(selector.startswith("rosetta.t5x.") for _, selector in full_table):
        return {}
    for name in bindings:
        log.info(f"{name} takes the value that was set under T5X's name for it")
    return bindings


def _find_full_names() -> dict[str, str]:
    """Return the full names of configurables, with their modules, by gin's names for them.

    Gin registers a module that `from a import b as c` imports as a.c.
    """
    # Gin has no public way to list its registry.
    registry = gin.config._REGISTRY.items()  # noqa: SLF001
    return {
        selector: f"{configurable.wrapped.__module__}.{configurable.wrapped.__qualname__}"
        for selector, configurable in registry
    }
