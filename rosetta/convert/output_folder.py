"""Create the folder that a conversion writes: complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import path_checks
from rosetta.core.errors import EXISTS, FAILED, TOO_BIG, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def create_folder(folder: Path, needed: int) -> Iterator[Path]:
    """Give a folder to write into, and rename it to `folder` at the end of the block.

    The folder is in a new temporary folder beside `folder`. Nothing of another run or of the user
    is changed. If the block fails, nothing is left.

    Args:
        folder: The folder to create. It may exist if it is empty.
        needed: The bytes that the block will write.

    Raises:
        UserError: `folder` is not empty, is a mount point or cannot be created, or the disk has
            less than `needed` bytes free.
    """
    path_checks.check_local_folder_writable(str(folder.parent))
    is_empty_folder = folder.is_dir() and not any(folder.iterdir())
    if os.path.lexists(folder) and not is_empty_folder:
        raise UserError("already exists", str(folder), "name a new folder", kind=EXISTS)
    target = folder.resolve()
    if os.path.ismount(target):
        raise UserError(
            "is a mount point, which the finished folder cannot replace",
            str(folder),
            "name a new folder in it",
            kind=UNSUPPORTED,
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="rosetta-part-", dir=target.parent))
    try:
        # mkdtemp's permissions are narrow. A folder in it has those of the user's other folders.
        part = temporary / "out"
        part.mkdir()
        free = shutil.disk_usage(part).free
        if free < needed:
            raise UserError(
                f"{needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free",
                str(folder.parent),
                "free some space, or name another folder",
                kind=TOO_BIG,
            )
        yield part
        _move_into_place(part, target, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(part: Path, target: Path, folder: Path) -> None:
    """Rename a finished folder to `target`, which may be an empty folder.

    Args:
        part: The finished folder.
        target: The resolved path of `folder`.
        folder: The path that the user named.
    """
    try:
        part.rename(target)
    except OSError as error:
        is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        reason = f"the finished folder cannot be renamed ({error.strerror})"
        if is_taken:
            reason = "another program wrote to it during the conversion"
        raise UserError(
            reason,
            str(folder),
            "convert again, and name a new folder; nothing was left behind",
            kind=EXISTS if is_taken else FAILED,
        ) from None
