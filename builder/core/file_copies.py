"""Copies of files: reflinks if the file system has them, otherwise copies of the bytes.

A copy is never a hard link. An edit in place of a hard link would change both files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The ioctl FICLONE of linux/fs.h: share the blocks of another file until one of the two is written.
_FICLONE = 0x40049409


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy the content, mode and times of a file; an existing target is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    with open(source, "rb") as content, open(target, "xb") as out:
        try:
            fcntl.ioctl(out, _FICLONE, content.fileno())
        except OSError:  # no reflinks here, or two file systems
            shutil.copyfileobj(content, out, 1 << 20)
    shutil.copystat(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder to a path that does not exist yet; symbolic links stay links."""
    shutil.copytree(source, target, symlinks=True, copy_function=copy_file)
