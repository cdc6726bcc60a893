"""Do the checkpoints that a run will save fit where it saves them?

Asked before anything starts, by the least that its model's sizes come to.
"""

from __future__ import annotations

import os
from pathlib import Path

from rosetta.core import system_queries
from rosetta.core.errors import TOO_BIG, UserError
from rosetta.core.value_parsing import is_address

GB, MB = 1e9, 1e6
FLOAT_BYTES = 4  # bytes of a number in a checkpoint
ADAM_MOMENTS = 2  # moments of a parameter


def format_size(count: float) -> str:
    """Return so many bytes as people read them: in GB, below one in MB."""
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / MB:.1f} MB"


def count_added_checkpoints(saves: int, keep: int | None, there: int) -> int:
    """Return how many checkpoints a folder gains, at most, at a time.

    Args:
      saves: that are to come.
      keep: how many the run leaves; None: all. The oldest goes when a new one is whole.
      there: that it has.
    """
    return saves if keep is None else min(saves, max(keep - there, 0) + 1)


def check_checkpoints_fit(folder: str, one: int, times: int, name: str) -> tuple[str, ...]:
    """Return a line where not all of a run's checkpoints fit. Nothing is known of object stores,
    quotas, and file systems without a size.

    Args:
      folder: that they go into; it need not be there.
      one: bytes of a checkpoint, at least.
      times: how many more there will be at a time, see at_once.
      name: of its variable, for the lines.

    Raises:
      UserError: there is no room for one.
    """
    if is_address(folder) or not times:
        return ()
    found = system_queries.query_free_space(
        next(each for each in (Path(folder), *Path(folder).parents) if os.path.isdir(each))
    )
    if found is None or found.free >= one * times:
        return ()
    where, free = f"{name}={folder}", f"{format_size(found.free)} are free"
    if found.free < one:
        raise UserError(
            f"a checkpoint takes at least {format_size(one)}, and {free}",
            where,
            f"make room, or name another {name}",
            kind=TOO_BIG,
        )
    return (
        (
            f"{where}: the run's checkpoints come to at least {format_size(one * times)} "
            f"({times} of {format_size(one)}), and {free}: make room, keep fewer, "
            "or name another folder"
        ),
    )
