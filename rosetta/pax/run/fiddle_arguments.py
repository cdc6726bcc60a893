"""Hyper-parameters as words of a command line: --fdl.NAME=LITERAL, as Fiddle reads them."""

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
# Fiddle takes a part of a value, too: NAME.ATTRIBUTE, NAME[INDEX], NAME['KEY'].
_WORD = re.compile(rf"--fdl(?:\.|_set[= ])({_NAME}(?:\.\w+|{_KEY})*)=(.*)", re.DOTALL)
# Options that choose another experiment, or set hyper-parameters besides the words above.
_OTHER_SOURCES = re.compile(
    r"--?(exp|fdl|fdl_config|fdl_config_file|fdl_set|fdl_tag|fdl_tags_set|fiddler|flagfile)\b"
)
_LITERAL_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


def parse_literal(text: str) -> object:
    """Return the Python value of a literal; a text that is not a literal is itself, and true and
    false are in any case.
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except _LITERAL_ERRORS:
        return text


def to_literal(text: str) -> str:
    """Return a text as the literal it is, or else as that of a string; lists lose their spaces."""
    found = parse_literal(text.strip())
    if isinstance(found, (str, bool, list, tuple)):
        return _format_literal(found)
    return text.strip()


def _format_literal(found: object) -> str:
    """Return a literal of a value; strings have double quotes."""
    if isinstance(found, str):
        return json.dumps(found, ensure_ascii=False)
    if isinstance(found, list):
        return f"[{','.join(map(_format_literal, found))}]"
    if isinstance(found, tuple):
        end = "," if len(found) == 1 else ""
        return f"({','.join(map(_format_literal, found))}{end})"
    return repr(found)


def parse_values(hyper: Mapping[str, str]) -> dict[str, object]:
    """Return hyper-parameters' values by name; NOT_KNOWN for one of which only a part is set.

    Args:
      hyper: as `split` returns them, in their order.
    """
    found: dict[str, object] = {}
    for name, text in hyper.items():
        whole = strip_part(name)
        found[whole] = parse_literal(text) if whole == name else NOT_KNOWN
    return found


def strip_part(name: str) -> str:
    """Return the hyper-parameter of a name that may be a part of one, such as NAME[0]."""
    return re.split(r"[.\[]", name, maxsplit=1)[0]


def changes_experiment(words: Iterable[str]) -> bool:
    """Return whether Paxml's words choose another experiment, or set what `split` does not see."""
    return any(_OTHER_SOURCES.match(word) for line in words for word in line.split())


def split_arguments(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the hyper-parameters in a text of words, name -> literal, and its other words. A value
    may have spaces in it.

    Raises:
      UserError: a word before the first that begins with --, or a hyper-parameter without a value.
    """
    hyper, others = dict[str, str](), list[str]()
    for word in _split_words(text.strip()):
        found = _WORD.fullmatch(word)
        if found:
            hyper.pop(found[1], None)  # the order counts where a part follows the whole
            hyper[found[1]] = to_literal(found[2])
        elif not re.match(
            r"--[A-Za-z]\w*([= ]|$)", word + " "
        ):  # no option of Paxml's has a dot in its name
            raise UserError(
                f"{word!r} is not an option",
                "ADDITIONAL_ARGS, ROSETTA_FDL",
                "write --fdl.NAME=VALUE, several of them with spaces between",
                kind=INVALID,
                value=word,
            )
        else:
            others += word.split() if "=" not in word.split()[0] else [word]
    return hyper, others


def _split_words(text: str) -> list[str]:
    """Return the words of a text: each begins with --, except inside of a literal."""
    words: list[str] = []
    for part in re.split(r"(?=\s--)", text):
        if words and _is_open(words[-1]) and not _is_open(words[-1] + part):
            words[-1] += part
        elif part.strip():
            words.append(part)
    return [word.strip() for word in words]


def _is_open(word: str) -> bool:
    """Return whether a word's value begins as a string or a container that does not end."""
    found = _WORD.fullmatch(word.strip())
    return (
        found is not None
        and found[2][:1] in tuple("'\"[({")
        and parse_literal(found[2]) == found[2]
    )
