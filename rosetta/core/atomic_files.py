"""Write files atomically: a reader sees the old content or the new one, never a part.

A file is written under a temporary name in the same folder and then renamed. build.py uses this
module before any package is installed. So the module uses only the standard library, and has to run
on Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The prefix of temporary files and folders. A program that was killed may leave some behind.
TEMPORARY_PREFIX = ".tmp-"


def is_temporary(name: str) -> bool:
    """Return whether a file or folder name is a temporary one, made by this module or build.py."""
    return name.startswith(TEMPORARY_PREFIX)


@contextlib.contextmanager
def replace_file(
    path: Path, mode: int | None = 0o644, *, temporary: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` when the block ends.

    If the block raises an exception, the temporary file is deleted and `path` stays as it is.

    Args:
        path: The file to create or replace. Its folder is created if it is missing.
        mode: The permissions of the file; None leaves them to the umask and to the writer.
        temporary: The path to yield, in the folder of `path`; None for a unique name. Give a path
            only if one process at a time writes the file. The next write then overwrites what a
            killed process left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if temporary is None:
        # Several machines may share the folder, and process ids are only unique on one.
        unique = f"{os.getpid()}-{os.urandom(4).hex()}"
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{unique}-{path.name}")
    try:
        yield temporary
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_atomic(
    path: Path,
    data: bytes | str,
    mode: int | None = 0o644,
    *,
    temporary: Path | None = None,
    sync: bool = False,
) -> None:
    """Create or replace a file atomically.

    Args:
        path: See replace_file.
        data: The content. Text is encoded as UTF-8.
        mode: See replace_file.
        temporary: See replace_file.
        sync: Whether to flush the content to the disk (fsync) before the rename, so that the file
            is complete even after a power failure.
    """
    content = data.encode() if isinstance(data, str) else data
    with (
        replace_file(path, mode, temporary=temporary) as temporary_path,
        open(temporary_path, "wb") as file,
    ):
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
