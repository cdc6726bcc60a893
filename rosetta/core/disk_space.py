"""Check before a run that its checkpoints will fit on the disk.

The launchers of T5X and Pax call this module. It compares the free space with the least that the
model's parameters and optimizer take.
"""

from __future__ import annotations

import os
from pathlib import Path

from rosetta.core import system_queries
from rosetta.core.errors import TOO_BIG, UserError
from rosetta.core.value_parsing import is_address

GB, MB = 1e9, 1e6
FLOAT_BYTES = 4  # of a number in a checkpoint
ADAM_MOMENTS = 2  # numbers that Adam keeps beside each parameter


def format_size(byte_count: float) -> str:
    """Return a number of bytes as text: in GB, or in MB if it is less than 1 GB."""
    if byte_count >= GB:
        return f"{byte_count / GB:.1f} GB"
    return f"{byte_count / MB:.1f} MB"


def count_added_checkpoints(saves: int, keep: int | None, existing: int) -> int:
    """Return by how many checkpoints a folder grows, at its fullest, during a run.

    Args:
      saves: The checkpoints that the run will save.
      keep: The checkpoints that the run leaves in the folder; None for all. The oldest is deleted
        after a new one is complete, so that the folder holds one more for a while.
      existing: The checkpoints that the folder has before the run.
    """
    if keep is None:
        return saves
    return min(saves, max(keep - existing, 0) + 1)


def check_checkpoints_fit(
    folder: str, checkpoint_bytes: int, added_checkpoints: int, variable: str
) -> tuple[str, ...]:
    """Check that a folder has space for the checkpoints of a run.

    The check passes for object stores and for file systems that report no size, since nothing is
    known of their free space. Quotas are not checked either.

    Args:
      folder: The folder of the checkpoints; it need not exist.
      checkpoint_bytes: The least size of one checkpoint.
      added_checkpoints: By how many checkpoints the folder grows, see count_added_checkpoints.
      variable: The variable that names the folder, for messages.

    Returns:
      A warning if one checkpoint fits but not all of them, else nothing.

    Raises:
      UserError: There is no space for one checkpoint.
    """
    if is_address(folder) or not added_checkpoints:
        return ()
    space = system_queries.query_free_space(_find_existing_folder(Path(folder)))
    if space is None or space.free >= checkpoint_bytes * added_checkpoints:
        return ()
    where, free = f"{variable}={folder}", f"{format_size(space.free)} are free"
    size = format_size(checkpoint_bytes)
    if space.free < checkpoint_bytes:
        raise UserError(
            f"a checkpoint takes at least {size}, and {free}",
            where,
            f"free some space, or name another {variable}",
            kind=TOO_BIG,
        )
    total = format_size(checkpoint_bytes * added_checkpoints)
    warning = (
        f"{where}: the run's checkpoints take at least {total} ({added_checkpoints} of {size}), "
        f"and {free}; free some space, keep fewer checkpoints, or name another folder"
    )
    return (warning,)


def _find_existing_folder(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if os.path.isdir(path))
