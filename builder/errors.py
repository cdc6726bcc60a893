"""What went wrong, said so that a person can act on it."""

from __future__ import annotations


class FatalError(Exception):
    """Something the user can mend: `what` is wrong, `where` it stands, what to `do`.

    Ends the program with status 2.
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.do = what, where, do

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line} -> {self.do}" if self.do else line

    def as_json(self) -> dict[str, str]:
        """Return the error as the document of --json has it."""
        return {"what": self.what, "where": self.where, "do": self.do}
