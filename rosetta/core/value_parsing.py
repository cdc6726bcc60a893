"""Values of words and variables, each refused in one line where it is none."""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING

from rosetta.core import option_types
from rosetta.core.errors import INVALID, UNKNOWN, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def flag(name: str, text: str) -> bool:
    """Return whether a variable switches something on.

    Raises:
      UserError: it says neither yes nor no.
    """
    if text.strip().lower() in ON:
        return True
    if text.strip().lower() in OFF:
        return False
    raise UserError(f"it is {text!r}", name, "give 0 or 1", kind=INVALID, value=text)


def on(given: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return whether a variable is on; not set or empty, it is what it defaults to."""
    return flag(name, given[name]) if given.get(name) else default


def one_of(name: str, text: str, known: Sequence[str]) -> str:
    """Return the text; UserError where it is none of what is known."""
    if text not in known:
        raise UserError(
            f"it is {text!r}", name, f"choose one of: {', '.join(known)}", kind=INVALID, value=text
        )
    return text


def fitting(*whole: int) -> str:
    """Return advice: the numbers that divide all of these."""
    return "choose one of: " + ", ".join(
        str(each) for each in range(1, min(whole) + 1) if not any(number % each for number in whole)
    )


def positive(name: str, text: str, *, least: int = 1) -> int:
    """Return a whole number of at least 1, or of at least `least`, which the message names.

    Raises:
      UserError: the text is none.
    """
    number = option_types.whole(text)
    if number is None:
        raise UserError(
            f"it is {text!r}",
            name,
            f"give a whole number, at least {least}",
            kind=INVALID,
            value=text,
        )
    return number


def parse_decimal(text: str, *, exponent: bool = False) -> float | None:
    """Return a finite number of 0 or more in ASCII digits, without underscores; None if the text is
    not one.

    Numbers of more than 12 digits before the point are refused, too: no setting has a use for them.

    Args:
      text: for example "0.9".
      exponent: whether "1e-3" is a number, too.
    """
    pattern = r"([0-9]{1,12}(\.[0-9]{0,30})?|\.[0-9]{1,30})"
    if exponent:
        pattern += r"([eE][+-]?[0-9]{1,3})?"
    if not re.fullmatch(pattern, text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def above_zero(name: str, text: str, example: str) -> float:
    """Return a number above 0, see parse_decimal.

    Args:
      name: of the variable.
      text: its value.
      example: a value that would do.

    Raises:
      UserError: the text is not one.
    """
    number = parse_decimal(text, exponent=True)
    if not number:
        raise UserError(
            f"it is {text!r}",
            name,
            f"give a number above 0, as in {name}={example}",
            kind=INVALID,
            value=text,
        )
    return number


def setting(
    word: str,
    known: Sequence[str],
    where: str,
    example: str,
    *,
    shown: Mapping[str, str] | None = None,
    others: str = "what is for other programs goes into the environment",
) -> tuple[str, str]:
    """Return the name and value of a NAME=VALUE word.

    Args:
      word: as typed.
      known: the names that something reads.
      where: the command, for the error.
      example: a word that would do.
      shown: variable -> what it is called elsewhere, where that is another name.
      others: where other things are set.

    Raises:
      UserError: the word is none, or nothing would read the variable.
    """
    name, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise UserError(
            f"{word!r} is no setting",
            where,
            f"write NAME=VALUE, as in {example}",
            kind=INVALID,
            value=word,
        )
    if name not in known:
        near = [
            each for each in known if (shown or {}).get(each) == name or name.startswith(f"{each}_")
        ] or difflib.get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]}?" if near else f"it takes {' '.join(known)}"
        raise UserError(
            f"it has no variable {name}", where, f"{advice} ({others})", kind=UNKNOWN, value=name
        )
    return name, value
