"""Copies of files that share no inode with their source: by reflink where the file system can, else
of the bytes.

A hard link would give two paths one content: whoever edits one of them in place edits the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FICLONE = (
    0x40049409  # of linux/fs.h: share the blocks of another file until one of the two is written
)


def copy_file(source: str | Path, target: str | Path) -> None:
    """Write `target`, a new file with the content, mode and times of `source`; a file that is there
    is replaced.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    with open(source, "rb") as content, open(target, "xb") as out:
        try:
            fcntl.ioctl(out, _FICLONE, content.fileno())
        except OSError:  # this file system has no reflinks, or the two are on different ones
            shutil.copyfileobj(content, out, 1 << 20)
    shutil.copystat(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder to a place that is free; symbolic links are kept."""
    shutil.copytree(source, target, symlinks=True, copy_function=copy_file)
