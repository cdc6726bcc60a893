"""The names of the axes of device meshes, as T5X and Pax use them."""

from __future__ import annotations

from typing import Any

# T5X's names. Pax calls the first two the same, and the last one PAX_MODEL.
REPLICA, DATA, MODEL = AXES = ("replica", "data", "model")
PAX_MODEL = "mdl"


def list_axis_names(entry: Any) -> tuple[str, ...]:
    """Return the axes that shard one dimension.

    Args:
        entry: The entry of a PartitionSpec for the dimension: None, a name, or several names.
    """
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    return tuple(entry)
