"""Define UserError, the class of all errors that the user can fix.

Both programs raise it, also before any package is installed. So only the standard library is used,
and Python 3.9 runs it.
"""

from __future__ import annotations

import math
from typing import Any

from rosetta.core.printable_text import escape


class UserError(Exception):
    """An error that the user can fix: what is wrong, where, and what to do about it.

    Attributes:
      what: The problem, as a text.
      where: The option, variable, file or name that has the problem.
      do: The remedy, as a text.
      kind: The class of problem, one of the names below; "" if nothing needs to tell it apart.
        Programs and tests rely on the kind, because texts may be rewritten.
      value: The value that was refused, or None.
    """

    def __init__(
        self, what: str, where: str = "", do: str = "", *, kind: str = "", value: Any = None
    ) -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do
        self.kind = kind
        self.value = value

    def __str__(self) -> str:
        """Return the error as one line, the way users see it."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        return escape(f"{line}; {self.do}" if self.do else line, keep="")

    def as_json(self) -> dict[str, Any]:
        """Return the member `error` of the document that --json prints."""
        shown: dict[str, Any] = {"what": self.what, "where": self.where, "do": self.do}
        if self.kind:
            shown["kind"] = self.kind
        if self.value is not None:
            # JSON has no infinity.
            is_number = isinstance(self.value, int) or (
                isinstance(self.value, float) and math.isfinite(self.value)
            )
            shown["value"] = self.value if is_number else str(self.value)
        return shown


INVALID = "invalid"  # a value, a file or an option that is not valid
MISSING = "missing"  # a file, a name, a program or a setting that does not exist
UNKNOWN = "unknown"  # a name that is not among the choices
EXISTS = "exists"  # there is already a file where one would be written
CONFLICT = "conflict"  # two settings, or a setting and a state, that contradict each other
DAMAGED = "damaged"  # content that differs from its hash, or that ends too early
DIFFERS = "differs"  # two values that have to be equal and are not
UNSUPPORTED = "unsupported"  # a valid request that this version, machine or format cannot serve
DENIED = "denied"  # permission, login or trust is missing
UNREACHABLE = "unreachable"  # a server, an engine or a device that does not answer
FAILED = "failed"  # a program or a step that failed
IN_USE = "in_use"  # another process uses the file or the device
TOO_BIG = "too_big"  # more than fits: a disk, memory, the limits of a format
KINDS = frozenset(
    {
        INVALID,
        MISSING,
        UNKNOWN,
        EXISTS,
        CONFLICT,
        DAMAGED,
        DIFFERS,
        UNSUPPORTED,
        DENIED,
        UNREACHABLE,
        FAILED,
        IN_USE,
        TOO_BIG,
    }
)
