"""Where the builder keeps its state."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """`$ROSETTA_CACHE`, else `$XDG_CACHE_HOME/rosetta`, else `~/.cache/rosetta`."""
    if own := os.environ.get("ROSETTA_CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rosetta"
