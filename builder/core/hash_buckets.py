"""Divide names among buckets. The bucket of a name depends on nothing but the name."""

from __future__ import annotations

import hashlib

COUNT = 8  # with another count, nearly every layer of every image changes


def choose_bucket(name: str) -> int:
    """Return the bucket of a name: a number from 1 to COUNT."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest, "big") % COUNT + 1
