"""Hashes of rows and batches, by which two runs or two hosts compare what they read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rosetta.data import Array


def hash_rows(batch: Mapping[str, Array], first: int = 0) -> list[int]:
    """Return a hash of 128 bits for each row.

    It covers the number of the row in the global batch, the names of the features and their values.

    Args:
        batch: Feature -> array [n, length].
        first: The number of the first row in the global batch.
    """
    count = len(next(iter(batch.values())))
    hashes = []
    for row in range(count):
        digest = hashlib.sha256(str(first + row).encode())
        for name in sorted(batch):
            values = np.ascontiguousarray(batch[name][row])
            digest.update(f"|{name}|{values.dtype.str}|{values.shape}|".encode())
            digest.update(values.tobytes())
        hashes.append(int.from_bytes(digest.digest()[:16]))
    return hashes


def hash_batch(batch: Mapping[str, Array], first: int = 0) -> str:
    """Return 32 hex digits for the rows of a batch.

    The sum of the hashes of all hosts (`add_hashes`) is that of the global batch.

    Args:
        batch: Feature -> array [n, length].
        first: The number of the first row in the global batch.
    """
    return f"{sum(hash_rows(batch, first)) % (1 << 128):032x}"


def add_hashes(parts: Iterable[str]) -> str:
    """Return the hash of a global batch from those of its hosts."""
    total = sum(int(part, 16) for part in parts)
    return f"{total % (1 << 128):032x}"
