"""A finding of `rosetta doctor`: what is wrong, where, and what to do.

A finding is one line for people and one object of --json. Neither has control characters or
passwords.
"""

from __future__ import annotations

from dataclasses import dataclass

from rosetta.core import secrets

BLOCKER, WARNING, NOTE = LEVELS = ("blocker", "warning", "note")
_LONGEST = 300  # characters of a text


@dataclass(frozen=True)
class Finding:
    """A problem of a machine, or a fact worth knowing about it.

    Attributes:
      id: The kind of finding, which does not change between releases.
      level: One of LEVELS. A blocker makes a run on this machine fail.
      what: What is wrong.
      where: Where it is wrong: a variable, a folder, a program, ...
      do: What to do about it.
      see: Where the problem was reported; "" if only our own documentation describes it.
    """

    id: str
    level: str
    what: str
    where: str
    do: str
    see: str = ""

    def __post_init__(self) -> None:
        """Make the texts printable."""
        for name in ("what", "where", "do", "see"):
            object.__setattr__(self, name, make_printable(getattr(self, name)))

    def __str__(self) -> str:
        """Return the finding as one line, as a launcher prints it."""
        reference = f" ({self.see})" if self.see else ""
        return f"{self.where}: {self.what}; {self.do}{reference}"

    def as_json(self) -> dict[str, str]:
        """Return the finding as an object of --json."""
        return {name: getattr(self, name) for name in ("id", "level", "what", "where", "do", "see")}


def make_printable(text: str) -> str:
    """Return a text from elsewhere so that it can be printed.

    Control characters become "?", credentials in addresses are hidden, and a long text is cut.
    """
    text = "".join(character if character.isprintable() else "?" for character in text)
    text = secrets.hide_forms(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
