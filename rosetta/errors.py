"""The one error for what a user can put right."""

from __future__ import annotations

import unicodedata


def escape_control(text: str) -> str:
    """Return a text as one line: control characters, line ends and halves of characters as Python writes them in a string.

    A file's name may hold them, and a terminal would obey them.
    """
    hidden = [character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    for character in set(hidden):
        text = text.replace(character, character.encode("unicode_escape").decode())
    return text


class UserError(Exception):
    """Something the user can put right: what is wrong, where, and what to do about it (exit code 2)."""

    def __init__(self, what: str, where: str, do: str) -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        """Return the one line a user sees."""
        return escape_control(f"{self.where}: {self.what}; {self.do}")

    def as_json(self) -> dict[str, str]:
        """Return the `error` member of the JSON envelope."""
        return {"what": self.what, "where": self.where, "do": self.do}
