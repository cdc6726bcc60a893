"""Read a text file that a user names, up to a limit.

The limit is for devices: reading /dev/zero, for example, would go on until memory is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

# Bytes. People write the files that are read here: presets and run descriptions have some thousand.
LARGEST_FILE = 16 << 20


def read_text(path: Path, where: str) -> str:
    """Return the text of a file in UTF-8.

    Args:
        path: The file. A pipe is valid too, such as that of the shell's `<(...)`.
        where: The option or variable that names the file, for the message.

    Raises:
        UserError: The file has more than LARGEST_FILE bytes.
        OSError: The file cannot be read.
        UnicodeDecodeError: The file is not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UserError(
            f"larger than {LARGEST_FILE >> 20} MiB, or a device", where, "name a text file"
        )
    return content.decode("utf-8")
