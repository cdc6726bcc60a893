"""What an Orbax checkpoint says about the run that wrote it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_mesh(folder: Path) -> dict[str, int]:
    """Return mesh axis -> size as the arrays' shardings in the newest checkpoint below `folder`
    record it, {} if none does.
    """
    records = sorted(folder.rglob("_sharding"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, int] = {}
    for record in records[-1:]:
        for text in json.loads(record.read_text(encoding="utf-8")).values():
            sharding = json.loads(text)
            axes = dict(
                zip(sharding.get("axis_names") or (), sharding.get("shape") or (), strict=False)
            )
            if math.prod(axes.values()) >= math.prod(found.values()):
                found = axes or found
    return found
