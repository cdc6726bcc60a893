"""The self-test of an environment: `rosetta selftest`.

It imports every shipped module. It trains a tiny model, stops, restores the checkpoint in another
process, and trains on. It also trains in FP8 and with Transformer Engine where they are, and sums
an array over all devices.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from rosetta.core.errors import UNKNOWN, UserError

if TYPE_CHECKING:
    from rosetta.selftest.workload import Workload

FRAMEWORKS = ("t5x", "pax")


def load_workload(framework: str) -> Workload:
    """Return the tiny model of a framework. JAX is not imported.

    Raises:
        UserError: The framework is not one of FRAMEWORKS.
    """
    if framework not in FRAMEWORKS:
        raise UserError(
            f"unknown framework {framework!r}",
            "selftest --framework",
            f"name one of {', '.join(FRAMEWORKS)}",
            kind=UNKNOWN,
            value=framework,
        )
    return cast("Workload", importlib.import_module(f"rosetta.selftest.{framework}").WORKLOAD)
