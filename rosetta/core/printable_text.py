"""Make text of others safe to print: nothing in it controls the terminal or reorders the text.

Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import unicodedata

# Control, format (also the bidirectional ones), surrogate, and the two Unicode line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape(text: str, *, keep: str = "\n\t") -> str:
    r"""Return `text` with an escape for each character that is not visible, as `\x1b` or `\u202e`.

    Args:
        text: What is about to be printed.
        keep: Characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character, keep) for character in text)


def escape_surrogates(text: str) -> str:
    r"""Return `text` with an escape for each byte that is not UTF-8, as `\udcff`; no stream prints
    it as it is.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escape_character(character: str, keep: str) -> str:
    if character in keep or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
