"""Gin files as text: enough of them to check a run's numbers and files in milliseconds, where gin
itself would import T5X and JAX first.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_INCLUDE = re.compile(r"include\s+['\"](.+?)['\"]")
_BLOCK = re.compile(r"([\w./]+):\s*(?:#.*)?$")
_BINDING = re.compile(r"(\s*)([\w./]+)\s*=\s*(.+)$")


def literal(value: object) -> str:
    """Return a gin literal for a string, number, None, boolean, or a dict or tuple of them."""
    if isinstance(value, str):
        # JSON's escapes are Python's, which gin reads; its raw surrogates are not, but a path has
        # none.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{literal(key)}: {literal(each)}" for key, each in value.items()) + "}"
        )
    return repr(value)


def read(files: Sequence[Path], roots: Sequence[Path]) -> dict[str, str]:
    """Return the text that each macro and parameter is bound to at the end of these files, by full
    name as written.

    Args:
      files: in the order gin parses them; what they include is read where they include it.
      roots: folders that includes are looked for in. One that is in none of them is left out.
    """
    return {name: text for name, (text, _) in placed(files, roots).items()}


def placed(files: Sequence[Path], roots: Sequence[Path]) -> dict[str, tuple[str, str]]:
    """Return, by full name as written, the text that each macro and parameter is bound to at the
    end of these files, and its file:line; see read.

    Of a value that goes over several lines the text is the first.
    """
    found: dict[str, tuple[str, str]] = {}
    for file in files:
        _read(file, roots, found)
    return found


def _read(file: Path, roots: Sequence[Path], found: dict[str, tuple[str, str]]) -> None:
    block = ""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if include := _INCLUDE.match(line):
            there = next(
                (root / include[1] for root in roots if (root / include[1]).is_file()), None
            )
            if there:
                _read(there, roots, found)
        elif heads := _BLOCK.match(line):
            block = heads[1]
        elif binding := _BINDING.match(line):
            found[f"{block}.{binding[2]}" if binding[1] else binding[2]] = (
                binding[3],
                f"{file}:{number}",
            )


def value(bound: Mapping[str, str], name: str) -> object | None:
    """Return what a name is bound to, through macros; None for what is no literal on one line, and
    for what is not bound.
    """
    text = bound.get(name, "").strip()
    if macro := re.fullmatch(r"%(\w+)\s*(?:#.*)?", text):
        return value({key: each for key, each in bound.items() if key != name}, macro[1])
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError):
        return None
