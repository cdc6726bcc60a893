"""Files that are written whole or not at all.

Both programs write with this module. Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomic(path: Path, data: bytes | str, mode: int | None = 0o644) -> None:
    """Write a whole file or nothing: beside it, then renamed over it.

    Args:
        path: The file. Its folder is made where it is missing.
        data: Its content; a text is written as UTF-8.
        mode: Its permissions; None leaves them to the umask.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder may be shared by machines, on which process ids are not unique.
    temporary = path.with_name(f".tmp-{os.getpid()}-{os.urandom(4).hex()}-{path.name}")
    try:
        with open(temporary, "wb") as out:
            out.write(raw)
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
