"""lock.json: what was baked into the environment that this package is part of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rosetta
from rosetta.core.errors import UserError


def get_lock_path() -> Path:
    """Return where lock.json lies in a baked environment: beside the package."""
    return Path(rosetta.__file__).resolve().parents[1] / "lock.json"


def read_lock() -> dict[str, Any]:
    """Return lock.json; UserError where there is none (a checkout, say) or it cannot be read."""
    where = get_lock_path()
    try:
        lock = json.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "no lock.json: this is not a baked environment",
            str(where),
            "run the `rosetta` of an environment that build.py baked",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the lock: {error}", str(where), "bake the environment again"
        ) from None
    if not isinstance(lock, dict):
        raise UserError("the lock is no JSON object", str(where), "bake the environment again")
    if lock.get("schema", 1) != 1:
        raise UserError(
            f"the lock has schema {lock['schema']!r}, this rosetta reads 1",
            str(where),
            "bake the environment again",
        )
    return lock


def get_framework(distribution: str) -> str:
    """Return the framework a distribution is of: `t5x`, or `pax` for `pax` and `pax-1.4`."""
    return distribution.partition("-")[0]
