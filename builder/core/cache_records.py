"""Small JSON records in the cache ("stamps"). Each record holds the hash of its content."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from builder.core import log
from rosetta.core.atomic_files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path


def write_stamp(path: Path, content: dict[str, Any]) -> None:
    """Write a record atomically."""
    write_atomic(path, json.dumps({"sha256": _hash(content), "content": content}, indent=1))


def read_stamp(path: Path) -> dict[str, Any] | None:
    """Return the content of a record; None if the record is missing or damaged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        content: dict[str, Any] | None = document["content"]
        if document["sha256"] != _hash(content):
            content = None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        content = None
    state = "missing or damaged" if content is None else "used"
    log.debug(f"cache: the record {path.parent.name}/{path.name} is {state}")
    return content


def _hash(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
