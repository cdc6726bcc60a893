"""The selftest: import everything shipped, train a tiny model, stop, restore, go on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from rosetta.core.errors import UNKNOWN, UserError

if TYPE_CHECKING:
    from rosetta.selftest.workload import Workload

FRAMEWORKS = ("t5x", "pax")


def load_workload(framework: str) -> Workload:
    """Return the tiny model of `framework`; importing it costs nothing of JAX."""
    if framework not in FRAMEWORKS:
        raise UserError(
            f"unknown framework {framework!r}",
            "selftest --framework",
            f"name one of {', '.join(FRAMEWORKS)}",
            kind=UNKNOWN,
            value=framework,
        )
    return cast("Workload", importlib.import_module(f"rosetta.selftest.{framework}").WORKLOAD)
