"""Hold a lock on a file, so that one process of several does a piece of work."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def hold_lock(path: Path, message: str) -> Iterator[None]:
    """Hold a lock on a file while the block runs. The lock also counts on other machines.

    Args:
        path: The file, which is created.
        message: What to say while another process has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            log.info(f"{message}; this process waits for it")
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield
