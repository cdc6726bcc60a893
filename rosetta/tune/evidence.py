"""The evidence of a tuning: a file with one line for what is tuned, then one line for each trial.

A tuning that was interrupted continues from this file.
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

    Args:
        path: The file, which need not exist.
        about: What is tuned: preset, settings, GPU, versions, steps and values.

    Raises:
        UserError: The file has the trials of another tuning, or no trials.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._trials = path, dict[str, Outcome]()
        # As JSON, to compare it with what the file has.
        head = json.loads(json.dumps({"schema": SCHEMA_VERSION, **about}))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        # The last line may be incomplete, if the tuning was killed.
        lines = [line for line in lines if line.endswith("\n")]
        try:
            entries = [json.loads(line) for line in lines]
            for entry in entries[1:]:
                key = _make_key(entry["settings"], entry["repeat"])
                self._trials[key] = Outcome(**entry["outcome"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "not the evidence of a tuning",
                str(path),
                "name another file, or remove this one",
                kind=INVALID,
            ) from None
        if entries and entries[0] != head:
            keys = _find_differing_keys(entries[0], head)
            raise UserError(
                f"the trials in this file are of another tuning: {', '.join(keys)} differ",
                str(path),
                "name another file with --evidence, or remove this one",
                kind=DIFFERS,
            )
        text = "".join(lines) if lines else json.dumps(head) + "\n"
        write_atomic(path, text, None)

    def find_outcome(self, choice: Choice, repeat: int) -> Outcome | None:
        """Return the outcome of a trial, None if the trial is to be made.

        A trial that was refused, failed or took too long is made again, since its cause may have
        been corrected.
        """
        outcome = self._trials.get(_make_key(choice.settings(), repeat))
        return outcome if outcome and outcome.kind in (OK, OUT_OF_MEMORY) else None

    def add_outcome(self, choice: Choice, repeat: int, outcome: Outcome) -> None:
        """Append a trial to the file."""
        line = json.dumps(
            {"settings": choice.settings(), "repeat": repeat, "outcome": asdict(outcome)}
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._trials[_make_key(choice.settings(), repeat)] = outcome


def _find_differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, sorted; for mappings, the keys inside them."""
    keys: list[str] = []
    for name in sorted({*one, *other}):
        if one.get(name) == other.get(name):
            continue
        if isinstance(one.get(name), dict) and isinstance(other.get(name), dict):
            keys += _find_differing_keys(one[name], other[name])
        else:
            keys.append(name)
    return keys


def _make_key(settings: Mapping[str, str], repeat: int) -> str:
    """Return the key of a trial."""
    return json.dumps([settings, repeat], sort_keys=True)
