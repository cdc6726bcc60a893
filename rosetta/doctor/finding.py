"""What a check found, as data: one line for people, one object for --json, and never a control
character or a password in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rosetta.core import secrets

BLOCKER, WARNING, NOTE = LEVELS = ("blocker", "warning", "note")
_LONGEST = 300


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Attributes:
      id: names the kind of finding, and does not change between releases.
      level: of LEVELS. A blocker is what a run on this machine dies of.
      what, where, do: what is wrong, where, and what to do about it, as in a UserError.
      see: where it was reported, "" where our own documentation tells it.
    """

    id: str
    level: str
    what: str
    where: str
    do: str
    see: str = ""

    def __post_init__(self) -> None:
        for name in ("what", "where", "do", "see"):
            object.__setattr__(self, name, make_printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.do}" + (f" ({self.see})" if self.see else "")

    def as_json(self) -> dict[str, str]:
        """Return it as an object of --json."""
        return {name: getattr(self, name) for name in ("id", "level", "what", "where", "do", "see")}


def make_printable(text: str) -> str:
    """Return a text that may hold what others wrote as one that can be printed: no control
    characters, no credentials in addresses, not endless.
    """
    text = "".join(character if character.isprintable() else "?" for character in text)
    text = secrets.hide_forms(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
