"""Read the device mesh of a run from its Orbax checkpoint, for the self-test."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_mesh(folder: Path) -> dict[str, int]:
    """Return the size of each mesh axis from the newest checkpoint in a folder or below.

    Orbax records the sharding of each array. The largest mesh of them is returned; {} if no
    checkpoint has a record.
    """
    records = sorted(folder.rglob("_sharding"), key=lambda path: path.stat().st_mtime_ns)
    mesh: dict[str, int] = {}
    for record in records[-1:]:
        for text in json.loads(record.read_text(encoding="utf-8")).values():
            sharding = json.loads(text)
            names, sizes = sharding.get("axis_names") or (), sharding.get("shape") or ()
            axes = dict(zip(names, sizes, strict=False))
            if math.prod(axes.values()) >= math.prod(mesh.values()):
                mesh = axes or mesh
    return mesh
