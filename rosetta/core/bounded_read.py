"""Read a file that a user names, and stop where it has no end: a device such as /dev/full is read
until the memory is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_FILE = (
    16 << 20
)  # bytes of a file that people write: presets and descriptions of runs have some thousand


def read_text(path: Path, where: str) -> str:
    """Return the text of a file in UTF-8.

    Args:
        path: The file; a pipe, as of `<(...)`, will do.
        where: What named it, for the message.

    Raises:
        UserError: It has more than LIMIT bytes.
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UserError(
            f"larger than {LARGEST_FILE >> 20} MiB, or a device", where, "name a text file"
        )
    return content.decode("utf-8")
