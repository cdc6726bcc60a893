"""What runs instead of what was asked for is said, once, with the reason."""

from __future__ import annotations

from rosetta.core import log


def warn_once(instead: str, reason: str) -> None:
    """Print one line for each (instead, reason) that comes up in this process."""
    log.warn(f"{instead}: {reason}", once=True)
