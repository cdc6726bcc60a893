"""Read what Orbax recorded of the arrays in a checkpoint, for the self-test."""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def _read_shardings(folder: Path) -> dict[str, str]:
    """Return the sharding of each array of the newest checkpoint in a folder or below, as JSON.

    The keys are the names of the arrays in base64. {} if no checkpoint has a record.
    """
    records = sorted(folder.rglob("_sharding"), key=lambda path: path.stat().st_mtime_ns)
    shardings: dict[str, str] = {}
    if records:
        shardings = json.loads(records[-1].read_text(encoding="utf-8"))
    return shardings


def read_mesh(folder: Path) -> dict[str, int]:
    """Return the size of each mesh axis from the newest checkpoint in a folder or below.

    The largest mesh of all arrays is returned; {} if no checkpoint has a record.
    """
    mesh: dict[str, int] = {}
    for text in _read_shardings(folder).values():
        sharding = json.loads(text)
        names, sizes = sharding.get("axis_names") or (), sharding.get("shape") or ()
        axes = dict(zip(names, sizes, strict=False))
        if math.prod(axes.values()) >= math.prod(mesh.values()):
            mesh = axes or mesh
    return mesh


def has_fp8_state(folder: Path) -> bool:
    """Return whether the newest checkpoint in a folder or below has histories of amaxes.

    Only projections in FP8 have such arrays, see rosetta.nn.fp8.
    """
    names = [base64.b64decode(key) for key in _read_shardings(folder)]
    return any(name.endswith(b"_amax_history") for name in names)
