"""The stamp of the builder's own environment: what the environment was made from.

Each call of build.py reads it first. So this module imports little, and only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import sys

STAMP_FILE = "rosetta-stamp"


def locate_python(root: str) -> str:
    """Return the path of the Python of the builder's environment in a checkout."""
    return os.path.join(root, ".venv", "bin", "python")


def is_current(root: str) -> bool:
    """Return whether the builder's environment in a checkout is there and up to date."""
    venv = os.path.join(root, ".venv")
    if not os.path.exists(locate_python(root)):
        return False
    # A git worktree shares the environment of its checkout, which keeps it up to date.
    if os.path.islink(venv):
        return True
    try:
        with open(os.path.join(venv, STAMP_FILE), encoding="ascii") as file:
            return file.read() == compute_stamp(os.path.join(root, "locks", "builder.txt"))
    except (OSError, UnicodeError):
        return False


def compute_stamp(lock: str) -> str:
    """Return a hash of everything that the environment depends on: the lock and this Python."""
    base = f"{sys.version_info.major}.{sys.version_info.minor} {os.path.realpath(sys.executable)}"
    with open(lock, "rb") as file:
        return hashlib.sha256(file.read() + base.encode()).hexdigest()
