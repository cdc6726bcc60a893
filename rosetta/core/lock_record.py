"""Read lock.json, the record of what was baked into this environment.

The builder writes the file beside the package `rosetta`. A checkout of the repository has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rosetta
from rosetta.core.errors import UserError

_BAKE_AGAIN = "bake the environment again"


def get_lock_path() -> Path:
    """Return the path of lock.json in a baked environment; the file may not exist."""
    return Path(rosetta.__file__).resolve().parents[1] / "lock.json"


def read_lock() -> dict[str, Any]:
    """Return the content of lock.json.

    Raises:
      UserError: There is no lock.json, or it cannot be read.
    """
    path = get_lock_path()
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "no lock.json: this is not a baked environment",
            str(path),
            "run the `rosetta` of an environment that build.py baked",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the lock: {error}", str(path), _BAKE_AGAIN) from None
    if not isinstance(lock, dict):
        raise UserError("the lock is not a JSON object", str(path), _BAKE_AGAIN)
    if lock.get("schema", 1) != 1:
        raise UserError(
            f"the lock has schema {lock['schema']!r}, and this rosetta reads schema 1",
            str(path),
            _BAKE_AGAIN,
        )
    return lock


def get_framework(distribution: str) -> str:
    """Return the framework of a distribution: "t5x", or "pax" for "pax" and "pax-1.4"."""
    return distribution.partition("-")[0]
