"""The first bytes of text files: check that they are UTF-8 text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD_BYTES = 4096  # the bytes of a text file that are checked to be UTF-8
# The share of characters in a head that may be damaged. Text in Western languages that is encoded
# in Latin 1 has more.
MAX_DAMAGED_SHARE = 0.01
MAX_CHECKED_FILES = 64


def check_text_head(head: bytes, path: str) -> None:
    """Check that a text file begins with UTF-8 text.

    Args:
        head: The first bytes of the file, at most HEAD_BYTES. They may end within a character.
        path: The file, for the message.

    Raises:
        UserError: The head has a null byte, or more invalid bytes than single damaged characters
            explain.
    """
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(head)
    invalid = sum("\udc80" <= letter <= "\udcff" for letter in text)
    if "\0" in text or invalid > MAX_DAMAGED_SHARE * len(text):
        content = "a null byte" if "\0" in text else f"{invalid} bytes that are not valid UTF-8"
        raise UserError(
            f"not a text file: its first {len(head):,} bytes have {content}",
            path,
            "name UTF-8 text (iconv -f LATIN1 -t UTF-8 converts another encoding)",
            kind=INVALID,
        )


def check_text_heads(paths: Sequence[str]) -> None:
    """Check that files begin with UTF-8 text. Of very many files, some are checked.

    Raises:
        UserError: See check_text_head.
    """
    step = max(1, -(-len(paths) // MAX_CHECKED_FILES))
    for path in paths[::step]:
        with open(path, "rb") as file:
            check_text_head(file.read(HEAD_BYTES), path)
