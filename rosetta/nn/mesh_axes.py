"""The axes of meshes of devices, by the names that T5X gives them."""

from __future__ import annotations

from typing import Any

REPLICA, DATA, MODEL = AXES = ("replica", "data", "model")
PAX_MODEL = "mdl"  # what Pax calls the last; its other two are named alike


def list_axis_names(part: Any) -> tuple[str, ...]:
    """Return the axes that one part of a PartitionSpec names: none, one, or several."""
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)
