"""What is never printed: values of variables that are secrets by their name, and credentials in
addresses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rosetta.core import secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN = secrets.HIDDEN
_SET = re.compile(r"(--?)?([A-Za-z][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)


def secret(name: str, value: str = "") -> bool:
    """Return whether a variable is one: by its name (*_TOKEN, *_KEY, *_SECRET, *_PASSWORD), or by
    credentials in an address that it holds.
    """
    return secrets.is_secret_name(name) or secrets.hide_forms(value) != value


class Mask:
    """Hides what of an environment is secret, wherever else it stands too."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # A value that is as short as this would be found in words that mean something else.
        self._values = sorted(
            (value for name, value in environment.items() if len(value) > 3 and secret(name)),
            key=len,
            reverse=True,
        )

    def word(self, text: str) -> str:
        """Return an argument or a line without its secrets.

        NAME=VALUE and --name=VALUE are told by their names.
        """
        for value in self._values:
            text = text.replace(value, HIDDEN)
        setting = _SET.fullmatch(text)
        if setting and secret(setting[2]):
            return f"{setting[1] or ''}{setting[2]}={HIDDEN}"
        return secrets.hide_forms(text)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables without the values that are secret."""
        return {
            name: HIDDEN if secrets.is_secret_name(name) else self.word(value)
            for name, value in environment.items()
        }

    def document(self, value: Any) -> Any:
        """Return a JSON document with all of its texts masked."""
        if isinstance(value, str):
            return self.word(value)
        if isinstance(value, dict):
            return {name: self.document(each) for name, each in value.items()}
        return (
            [self.document(each) for each in value] if isinstance(value, (list, tuple)) else value
        )
