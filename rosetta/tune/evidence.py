"""Store the trials of `rosetta tune` in a file, the evidence.

The first line of the file says what is tuned. Each other line is a trial. A search that was
interrupted continues from this file.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, INVALID, UserError
from rosetta.tune.search import OK, OUT_OF_MEMORY, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA_VERSION = 1


class Evidence:
    """A file of trials, one JSON object in each line.

    The constructor reads the trials of the file, and creates the file if it does not exist. It
    removes an incomplete last line, which a killed search leaves behind.

    Args:
        path: The file.
        subject: What is tuned: preset, settings, GPU, versions, steps and values.

    Raises:
        UserError: The file is not valid evidence, or has the trials of another subject.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self._path = path
        self._trials: dict[str, Outcome] = {}
        # A round trip through JSON turns tuples into lists, as they are in the file.
        header = json.loads(json.dumps({"schema": SCHEMA_VERSION, **subject}))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        lines = [line for line in lines if line.endswith("\n")]
        try:
            entries = [json.loads(line) for line in lines]
            if entries and not isinstance(entries[0], dict):
                raise TypeError("the first line is not an object")
            for entry in entries[1:]:
                key = _make_key(entry["settings"], entry["repeat"])
                self._trials[key] = Outcome(**entry["outcome"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "not a valid evidence file of rosetta tune",
                str(path),
                "name another file with --evidence, or remove this one",
                kind=INVALID,
            ) from None
        if entries and entries[0] != header:
            keys = _find_differing_keys(entries[0], header)
            raise UserError(
                f"the trials in this file were made with another {', '.join(keys)}",
                str(path),
                "name another file with --evidence, or remove this one",
                kind=DIFFERS,
            )
        text = "".join(lines) if lines else json.dumps(header) + "\n"
        write_atomic(path, text, mode=None)

    def find_outcome(self, choice: Choice, repeat: int) -> Outcome | None:
        """Return the outcome of a trial, or None if the trial has to be run.

        A trial that was refused, failed or took too long has to be run again, because the cause
        may have been corrected.
        """
        outcome = self._trials.get(_make_key(choice.settings(), repeat))
        return outcome if outcome and outcome.kind in (OK, OUT_OF_MEMORY) else None

    def add_outcome(self, choice: Choice, repeat: int, outcome: Outcome) -> None:
        """Append the outcome of a trial to the file."""
        line = json.dumps(
            {"settings": choice.settings(), "repeat": repeat, "outcome": asdict(outcome)}
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._trials[_make_key(choice.settings(), repeat)] = outcome


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


def _make_key(settings: Mapping[str, str], repeat: int) -> str:
    """Return a text that is the same for the same settings and repeat, to look up trials by it."""
    return json.dumps([settings, repeat], sort_keys=True)
