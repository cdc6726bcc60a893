"""Hyper-parameters as words of a command line: --fdl.NAME=LITERAL, as Fiddle reads them."""

from __future__ import annotations

import ast
import re

from rosetta.core.errors import INVALID, UserError

_WORD = re.compile(r"--fdl\.([A-Za-z_][A-Za-z0-9_.]*)=(.*)", re.DOTALL)


def value(text: str) -> object:
    """Return the Python value of a literal; a text that is none is itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def literal(text: str) -> str:
    """Return a text as the literal it is, or else as that of a string; lists lose their spaces."""
    found = value(text.strip())
    if isinstance(found, str):
        return '"{}"'.format(found.replace("\\", "\\\\").replace('"', '\\"'))
    return repr(found).replace(" ", "") if isinstance(found, (list, tuple)) else text.strip()


def split(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the hyper-parameters in a text of words, name -> literal, and its other words. A value
    may have spaces in it.

    Raises:
      UserError: a word before the first that begins with --, or a hyper-parameter without a value.
    """
    hyper, others = dict[str, str](), list[str]()
    for word in re.split(r"\s+(?=--)", text.strip()):
        if not word:
            continue
        found = _WORD.fullmatch(word.strip())
        if found:
            hyper[found[1]] = literal(found[2])
        elif not re.match(
            r"--[A-Za-z]\w*([= ]|$)", word.strip() + " "
        ):  # no option of Paxml's has a dot in its name
            raise UserError(
                f"{word.strip()!r} is no option",
                "ADDITIONAL_ARGS, ROSETTA_FDL",
                "write --fdl.NAME=VALUE, several of them with spaces between",
                kind=INVALID,
                value=word.strip(),
            )
        else:
            others += word.split() if "=" not in word.split()[0] else [word.strip()]
    return hyper, others
