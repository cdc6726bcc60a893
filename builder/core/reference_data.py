"""What rosetta's presets and experiments set, for the pages that are made from it.

The builder imports nothing of rosetta but rosetta.core. So a process of rosetta's prints the data.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from builder.core import subprocesses

ROOT = Path(__file__).parents[2]
MODULE = "rosetta.presets.reference_data"


@functools.cache
def read() -> dict[str, Any]:
    """Return the document that `python -m rosetta.presets.reference_data` prints."""
    printed = subprocesses.run_program(
        [sys.executable, "-m", MODULE],
        what=f"python -m {MODULE} failed",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    document: dict[str, Any] = json.loads(printed)
    return document
