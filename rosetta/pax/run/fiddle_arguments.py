"""Hyper-parameters as arguments of a command line: --fdl.NAME=LITERAL.

Fiddle, the configuration library of Paxml, reads a value as a Python literal. The functions here
read and write the same literals before Fiddle is imported.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING

from rosetta.core.errors import INVALID, UserError
from rosetta.core.not_known import NOT_KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAME = r"[A-Za-z_]\w*"
_KEY = r"""\[(?:-?\d+|'[^']*'|"[^"]*")\]"""
# Fiddle also sets a part of a value: NAME.ATTRIBUTE, NAME[INDEX], NAME['KEY'].
_ARGUMENT = re.compile(rf"--fdl(?:\.|_set[= ])({_NAME}(?:\.\w+|{_KEY})*)=(.*)", re.DOTALL)
# Options that choose another experiment, or set hyper-parameters besides the arguments above.
_OTHER_SOURCES = re.compile(
    r"--?(exp|fdl|fdl_config|fdl_config_file|fdl_set|fdl_tag|fdl_tags_set|fiddler|flagfile)\b"
)
# No option of Paxml has a dot in its name.
_OPTION = re.compile(r"--[A-Za-z]\w*([= ]|$)")
_LITERAL_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def parse_literal(text: str) -> object:
    """Return the Python value of a literal.

    A text that is not a literal is its own value. The words true and false are truth values in
    upper and lower case.
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except _LITERAL_ERRORS:
        return text


def to_literal(text: str) -> str:
    """Return a text as a Python literal, with double quotes if it is a string.

    A text that is a literal already stays, but lists lose their spaces.
    """
    value = parse_literal(text.strip())
    if isinstance(value, (str, bool, list, tuple)):
        return _format_literal(value)
    return text.strip()


def _format_literal(value: object) -> str:
    """Return the literal of a value; strings get double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{','.join(map(_format_literal, value))}]"
    if isinstance(value, tuple):
        end = "," if len(value) == 1 else ""
        return f"({','.join(map(_format_literal, value))}{end})"
    return repr(value)


def parse_values(hyper: Mapping[str, str]) -> dict[str, object]:
    """Return the values of hyper-parameters by name.

    Args:
      hyper: The literals by name, as `split_arguments` returns them, in their order.

    Returns:
      The values. A hyper-parameter of which only a part is set is NOT_KNOWN.
    """
    values: dict[str, object] = {}
    for name, text in hyper.items():
        whole = strip_part(name)
        values[whole] = parse_literal(text) if whole == name else NOT_KNOWN
    return values


def strip_part(name: str) -> str:
    """Return the name of the hyper-parameter that an argument sets, such as NAME for NAME[0]."""
    return re.split(r"[.\[]", name, maxsplit=1)[0]


def changes_experiment(words: Iterable[str]) -> bool:
    """Return whether arguments of Paxml choose another experiment, or set hyper-parameters in a
    way that `split_arguments` does not see.
    """
    return any(_OTHER_SOURCES.match(word) for line in words for word in line.split())


def split_arguments(text: str) -> tuple[dict[str, str], list[str]]:
    """Split a text into hyper-parameters and other arguments of Paxml.

    Args:
      text: Arguments with spaces between them. A value may contain spaces.

    Returns:
      The literals of the hyper-parameters by name, and the other arguments.

    Raises:
      UserError: A word is not an option, or a hyper-parameter has no value.
    """
    hyper, others = dict[str, str](), list[str]()
    for word in _split_words(text.strip()):
        argument = _ARGUMENT.fullmatch(word)
        if argument:
            # The order counts if a part follows the whole.
            hyper.pop(argument[1], None)
            hyper[argument[1]] = to_literal(argument[2])
        elif not _OPTION.match(word):
            raise UserError(
                f"{word!r} is not an option",
                "ADDITIONAL_ARGS, ROSETTA_FDL",
                "write --fdl.NAME=VALUE, several of them with spaces between",
                kind=INVALID,
                value=word,
            )
        elif "=" in word.split()[0]:
            others.append(word)
        else:
            others += word.split()
    return hyper, others


def _split_words(text: str) -> list[str]:
    """Return the words of a text: each begins with --, except inside a literal."""
    words: list[str] = []
    for part in re.split(r"(?=\s--)", text):
        if words and _is_open(words[-1]) and not _is_open(words[-1] + part):
            words[-1] += part
        elif part.strip():
            words.append(part)
    return [word.strip() for word in words]


def _is_open(word: str) -> bool:
    """Return whether a value begins as a string or a container that does not end in the word."""
    argument = _ARGUMENT.fullmatch(word.strip())
    if argument is None:
        return False
    value = argument[2]
    return value[:1] in tuple("'\"[({") and parse_literal(value) == value
