"""What runs instead of what was asked for is said, once, with the reason."""

from __future__ import annotations

import sys

_said: set[tuple[str, str]] = set()


def say(instead: str, reason: str) -> None:
    """Print one line for each (instead, reason) that comes up in this process."""
    if (instead, reason) not in _said:
        _said.add((instead, reason))
        print(f"rosetta: {instead}: {reason}", file=sys.stderr, flush=True)
