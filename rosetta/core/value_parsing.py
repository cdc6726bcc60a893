"""Parse the values that users give in variables, settings and options.

Each type of value has one parser, which every program, script and preset uses. So a text that is
valid in one place is valid everywhere, and means the same. A parser takes the text, and the name of
the variable, setting or option for the error. An invalid text raises a UserError of one line.

Formats of other programs have their own rules and are not parsed here: flags of XLA, YAML, JSON,
literals of Python, the output of Slurm and nvidia-smi.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRUE_WORDS, FALSE_WORDS = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
LARGEST = 10**9 - 1  # the largest valid whole number; no setting has a use for more
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"([0-9]{1,12}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def parse_truth_value(name: str, text: str) -> bool:
    """Return whether a text such as "1" or "off" switches something on.

    Upper and lower case are the same, and spaces around the word are ignored.

    Args:
      name: The variable, setting or option, for the error.
      text: One of TRUE_WORDS or FALSE_WORDS.

    Raises:
      UserError: The text is neither.
    """
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise _make_invalid_error(
        name, text, "truth value", "give 1 or 0 (or true, yes, on; false, no, off)"
    )


def read_truth_value(variables: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return the truth value of a variable, or the default if it is not set or empty.

    Raises:
      UserError: The variable has another value.
    """
    text = variables.get(name)
    return parse_truth_value(name, text) if text else default


def parse_whole_number(name: str, text: str, *, minimum: int = 1, maximum: int = LARGEST) -> int:
    """Return a whole number in ASCII digits, without sign, underscores and leading zeros.

    Args:
      name: The variable, setting or option, for the error.
      text: For example "32".
      minimum: The smallest valid number.
      maximum: The largest valid number.

    Raises:
      UserError: The text is not a number in this range.
    """
    if _WHOLE_NUMBER.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    remedy = f"give a whole number from {minimum} to {maximum}"
    raise _make_invalid_error(name, text, "number", remedy)


def parse_digits(text: str) -> int | None:
    """Return the number that another program wrote as ASCII digits, or None for another text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def parse_decimal(text: str) -> float | None:
    """Return a finite number of 0 or more, or None for another text.

    A number has ASCII digits and no underscores. More than 12 digits before the point are not
    valid, because no setting has a use for them.

    Args:
      text: For example "0.9" or "1e-3".
    """
    if not _DECIMAL.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def parse_number(name: str, text: str, *, above_zero: bool = False, example: str = "") -> float:
    """Return a number of 0 or more, or above 0; see parse_decimal.

    Args:
      name: The variable, setting or option, for the error.
      text: For example "0.9" or "1e-3".
      above_zero: Whether 0 is refused.
      example: A valid value, for the error.

    Raises:
      UserError: The text is not such a number.
    """
    number = parse_decimal(text)
    if number is not None and (number or not above_zero):
        return number
    remedy = "give a number above 0" if above_zero else "give a number of 0 or more"
    if example:
        remedy += f", as in {name}={example}"
    raise _make_invalid_error(name, text, "number", remedy)


def parse_choice(name: str, text: str, choices: Sequence[str]) -> str:
    """Return the text if it is one of the choices.

    Raises:
      UserError: The text is not one of the choices.
    """
    if text not in choices:
        raise _make_invalid_error(name, text, "choice", f"choose one of: {', '.join(choices)}")
    return text


def parse_list(name: str, text: str, *, choices: Sequence[str] = ()) -> list[str]:
    """Return the items of a text such as "fsdp, remat".

    Spaces around items are ignored. Empty items are ignored too, because a script may write
    "$SWITCHES,fsdp".

    Args:
      name: The variable, setting or option, for the error.
      text: Items separated by commas. An empty text is an empty list.
      choices: The valid items; () if every item is valid.

    Raises:
      UserError: An item is not one of the choices.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    return [parse_choice(name, item, choices) for item in items] if choices else items


def asks_for_cpu(platforms: str) -> bool:
    """Return whether a value of JAX_PLATFORMS asks for the CPU. JAX uses the first platform.

    Args:
      platforms: For example "cpu" or "cuda,cpu", as JAX splits it; "" leaves the choice to JAX.
    """
    return platforms.split(",", maxsplit=1)[0] == "cpu"


def parse_step_range(name: str, text: str) -> tuple[int, int]:
    """Return the first step of a range such as "20:25", and the step after the last.

    Raises:
      UserError: The text is not a range, or the range has no step.
    """
    first, _, end = text.partition(":")
    if _WHOLE_NUMBER.fullmatch(first) and _WHOLE_NUMBER.fullmatch(end):
        steps = int(first), int(end)
        if steps[0] < steps[1] <= LARGEST:
            return steps
    remedy = f"give the first step and the step after the last, as in {name}=20:25"
    raise _make_invalid_error(name, text, "range of steps", remedy)


def split_scheme(text: str) -> tuple[str, str]:
    """Return the scheme of an address and the rest; for a path, ("", path).

    Args:
      text: For example "gs://bucket/folder", which is ("gs://", "bucket/folder"), or "/data".
    """
    scheme = _SCHEME.match(text)
    return (scheme.group(), text[scheme.end() :]) if scheme else ("", text)


def is_address(text: str) -> bool:
    """Return whether a text is an address such as gs://bucket/folder and not a path."""
    return bool(split_scheme(text)[0])


def parse_path(name: str, text: str) -> str:
    """Return the absolute path of a file or folder. An address such as gs://bucket is unchanged.

    A "~" at the beginning is the home folder. A relative path counts from the current folder. Links
    are followed.

    Args:
      name: The variable, setting or option, for the error.
      text: The path.

    Raises:
      UserError: The text is empty, or no file can have this name.
    """
    if is_address(text):
        return text
    if not text or "\0" in text:
        raise _make_invalid_error(name, text, "path", "name a file or a folder")
    return os.path.realpath(os.path.expanduser(text))


def parse_host_and_port(name: str, text: str) -> tuple[str, int]:
    """Return the host and the port of an address such as "node1:1234" or "[::1]:1234".

    Raises:
      UserError: The text is not such an address.
    """
    host, _, port = text.rpartition(":")
    if re.fullmatch(r"[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\]", host) and _WHOLE_NUMBER.fullmatch(port):
        number = int(port)
        if 0 < number < 1 << 16:
            return host, number
    raise _make_invalid_error(name, text, "address", "write HOST:PORT, as in node1:1234")


def suggest_common_divisors(*numbers: int) -> str:
    """Return a remedy that lists the numbers by which all of these can be divided."""
    divisors = [
        str(divisor)
        for divisor in range(1, min(numbers) + 1)
        if not any(number % divisor for number in numbers)
    ]
    return f"choose one of: {', '.join(divisors)}"


def _make_invalid_error(name: str, text: str, type_name: str, remedy: str) -> UserError:
    """Return the error for a text that is not a valid value of a type."""
    return UserError(f"{text!r} is not a valid {type_name}", name, remedy, kind=INVALID, value=text)
