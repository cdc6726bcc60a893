"""The folder of the package `rosetta` that goes into environments and images."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ROSETTA_BISECT_PACKAGE"


def find_baked_package() -> Path:
    """Return the folder `rosetta` that the builder bakes.

    This is the folder of this checkout. While `bisect` runs, it is the folder of the commit that
    is being tried; the builder itself still imports `rosetta.core` of its own checkout.
    """
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "rosetta")
