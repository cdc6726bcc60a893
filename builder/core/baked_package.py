"""The folder of the package `rosetta` that goes into what is baked."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ROSETTA_BISECT_PACKAGE"


def find_baked_package() -> Path:
    """Return the folder `rosetta` of this checkout, or that of the commit which `bisect` tries.

    The builder imports modules of its own checkout's `rosetta.core`, so that what it runs and what
    it bakes are two things while it bisects.
    """
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "rosetta")
