"""Make text from other sources safe to print.

No character of the result controls the terminal or reorders the text.

Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import unicodedata

# Control, format (also the bidirectional ones), surrogate, and the two Unicode line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape(text: str, *, keep: str = "\n\t") -> str:
    r"""Return `text` with an escape for each character that is not visible, as `\x1b` or `\u202e`.

    Args:
        text: The text to print.
        keep: Characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character, keep) for character in text)


def escape_surrogates(text: str) -> str:
    r"""Return `text` with an escape such as `\udcff` for each byte that is not UTF-8.

    No stream takes these characters.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escape_character(character: str, keep: str) -> str:
    """Return a character, or its escape if it is not visible."""
    if character in keep or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
