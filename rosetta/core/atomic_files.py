"""Files that are written whole or not at all.

Both programs write with this module: first under a temporary name in the same folder, then renamed
over the file. Only the standard library is used, and Python 3.9 runs it.
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
    """Return whether a name is one under which a file or a folder is being written."""
    return name.startswith(TEMPORARY_PREFIX)


@contextlib.contextmanager
def replace_file(
    path: Path, mode: int | None = 0o644, *, temporary: Path | None = None
) -> Iterator[Path]:
    """Yield a path to write to, and give what is there the name `path` if all went well.

    Args:
        path: The file. Its folder is made if it is missing.
        mode: Its permissions; None leaves them to the umask and to what writes the file.
        temporary: The path to yield, beside `path`; None for a new name. A fixed name is for files
            that one process at a time writes: what a killed process leaves is written over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if temporary is None:
        # A folder may be shared by machines, on which process ids are not unique.
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
        data: The content; a text is written as UTF-8.
        mode: See replace_file.
        temporary: See replace_file.
        to_disk: Whether the content has to be on the disk before the file gets its name, so that
            the file is whole after a power failure, too.
    """
    raw = data.encode() if isinstance(data, str) else data
    with replace_file(path, mode, temporary=temporary) as new, open(new, "wb") as out:
        out.write(raw)
        if to_disk:
            out.flush()
            os.fsync(out.fileno())
