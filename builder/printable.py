"""Make text of others safe to print: no character of it may control the terminal or reorder what is read."""

from __future__ import annotations

import unicodedata

# Control, format (the bidirectional ones among them), surrogate, and the two Unicode line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape(text: str, *, keep: str = "\n\t") -> str:
    r"""Return `text` with each character that is not visible as its escape, for example `\x1b` or `\u202e`.

    Args:
        text: What is about to be printed.
        keep: Characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character, keep) for character in text)


def _escape_character(character: str, keep: str) -> str:
    if character in keep or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
