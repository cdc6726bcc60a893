"""A file of results that a long search appends to, so that a killed search continues from it.

Each line is a JSON object. The first line says what the results are about.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_REMEDY = "name another file with --evidence, or remove this one"


class EvidenceFile:
    """A file of results, one JSON object in each line.

    The constructor reads the results of the file, and creates the file if it does not exist. It
    removes an incomplete last line, which a killed search leaves behind.

    Args:
      path: The file.
      subject: What the results are about: all that they depend on.
      read_entry: Takes a result of the file. It raises ValueError, KeyError or TypeError if the
        result is not valid.
      program: The command that writes the file, for the error.

    Raises:
      UserError: The file is not valid, or has the results of another subject.
    """

    def __init__(
        self,
        path: Path,
        subject: Mapping[str, Any],
        read_entry: Callable[[dict[str, Any]], None],
        program: str,
    ) -> None:
        self._path = path
        # A round trip through JSON turns tuples into lists, as they are in the file.
        header = json.loads(json.dumps(subject))
        lines = _read_whole_lines(path)
        try:
            entries = [json.loads(line) for line in lines]
            if entries and not isinstance(entries[0], dict):
                raise TypeError("the first line is not an object")
            for entry in entries[1:]:
                read_entry(entry)
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"not a valid evidence file of {program}", str(path), _REMEDY, kind=INVALID
            ) from None
        if entries and entries[0] != header:
            keys = _find_differing_keys(entries[0], header)
            raise UserError(
                f"the results in this file were made with another {', '.join(keys)}",
                str(path),
                _REMEDY,
                kind=DIFFERS,
            )
        text = "".join(lines) if lines else json.dumps(header) + "\n"
        write_atomic(path, text, mode=None)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append a result to the file."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _read_whole_lines(path: Path) -> list[str]:
    """Return the lines of a file that end; none if there is no file."""
    if not path.exists():
        return []
    text = path.read_bytes().decode("utf-8", errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _find_differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, sorted. For mappings, return the keys inside them."""
    differing_keys: list[str] = []
    for key in sorted({*first, *second}):
        if first.get(key) == second.get(key):
            continue
        if isinstance(first.get(key), dict) and isinstance(second.get(key), dict):
            differing_keys += _find_differing_keys(first[key], second[key])
        else:
            differing_keys.append(key)
    return differing_keys
