"""The one error for what a user can put right."""

from __future__ import annotations

from rosetta.core.printable_text import escape


class UserError(Exception):
    """Something the user can put right: what is wrong, where, and what to do about it (exit code
    2).
    """

    def __init__(self, what: str, where: str, do: str) -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        """Return the one line a user sees."""
        return escape(f"{self.where}: {self.what}; {self.do}", keep="")

    def as_json(self) -> dict[str, str]:
        """Return the `error` member of the JSON envelope."""
        return {"what": self.what, "where": self.where, "do": self.do}
