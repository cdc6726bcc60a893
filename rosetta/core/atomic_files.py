"""Write whole files or nothing.

A file is written under a temporary name in the same folder and then renamed. Both programs use this
module. Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# How temporary names of files and folders begin. A program that was killed may leave such names.
TEMPORARY_PREFIX = ".tmp-"


def is_temporary(name: str) -> bool:
    """Return whether a name is the temporary name of a file or a folder that is being written."""
    return name.startswith(TEMPORARY_PREFIX)


@contextlib.contextmanager
def replace_file(
    path: Path, mode: int | None = 0o644, *, temporary: Path | None = None
) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` unless an exception is raised.

    Args:
        path: The file. Its folder is made if it is missing.
        mode: The permissions of the file; None leaves them to the umask and to the writer.
        temporary: The path to yield, in the folder of `path`; None for a new name. A fixed name is
            for files that only one process at a time writes. A file that a killed process left
            there is overwritten.
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
    to_disk: bool = False,
) -> None:
    """Write a whole file or nothing.

    Args:
        path: See replace_file.
        data: The content. A text is written as UTF-8.
        mode: See replace_file.
        temporary: See replace_file.
        to_disk: Whether the content is on the disk before the file gets its name. The file is then
            complete even after a power failure.
    """
    raw = data.encode() if isinstance(data, str) else data
    with replace_file(path, mode, temporary=temporary) as new, open(new, "wb") as out:
        out.write(raw)
        if to_disk:
            out.flush()
            os.fsync(out.fileno())
