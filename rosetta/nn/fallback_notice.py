"""A warning for the case that rosetta computes something in another way than the settings ask."""

from __future__ import annotations

from rosetta.core import log

# The end of each `fallback` that takes the place of Transformer Engine.
INSTEAD_OF_TE = "instead of Transformer Engine"


def warn_once(fallback: str, reason: str) -> None:
    """Print a warning, once in this process for each fallback and reason.

    Args:
        fallback: What runs, and instead of what.
        reason: Why.
    """
    log.warn(f"{fallback}: {reason}", once=True)
