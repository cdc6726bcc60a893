"""Fingerprints of a folder, from which a program knows that the files in it were replaced."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def compute_fingerprint(folder: Path) -> str:
    """Return a hash of the folder's path, and of the names, sizes and times of the files in it.

    No file is read. The files of folders in the folder count, too.

    Args:
      folder: The folder.

    Returns:
      64 hexadecimal digits.
    """
    digest = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape"))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            entry = f"\0{path.relative_to(folder)}\0{status.st_size}\0{status.st_mtime_ns}"
            digest.update(entry.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def compute_content_fingerprint(folder: Path) -> str:
    """Return a hash of the names and the contents of the files in a folder, wherever it is.

    The files of folders in the folder count, too. What Python compiles does not.

    Args:
      folder: The folder.

    Returns:
      64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            entry = f"{path.relative_to(folder)}\0{content}\0"
            digest.update(entry.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
