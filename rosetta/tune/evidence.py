"""Store the trials of `rosetta tune` in a file, the evidence.

The first line of the file says what is tuned. Each other line is a trial. A search that was
interrupted continues from this file.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rosetta.core.evidence_file import EvidenceFile
from rosetta.tune.search import OK, OUT_OF_MEMORY, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA_VERSION = 1


class Evidence:
    """The trials of a tuning, see EvidenceFile.

    Args:
        path: The file.
        subject: What is tuned: preset, settings, GPU, versions, steps and values.

    Raises:
        UserError: The file is not valid evidence, or has the trials of another subject.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any]) -> None:
        self._trials: dict[str, Outcome] = {}
        self._file = EvidenceFile(
            path, {"schema": SCHEMA_VERSION, **subject}, self._read_trial, "rosetta tune"
        )

    def _read_trial(self, entry: dict[str, Any]) -> None:
        """Take a trial of the file."""
        key = _make_key(entry["settings"], entry["repeat"])
        self._trials[key] = Outcome(**entry["outcome"])

    def find_outcome(self, choice: Choice, repeat: int) -> Outcome | None:
        """Return the outcome of a trial, or None if the trial has to be run.

        A trial that was refused, failed or took too long has to be run again, because the cause
        may have been corrected.
        """
        outcome = self._trials.get(_make_key(choice.settings(), repeat))
        return outcome if outcome and outcome.kind in (OK, OUT_OF_MEMORY) else None

    def add_outcome(self, choice: Choice, repeat: int, outcome: Outcome) -> None:
        """Append the outcome of a trial to the file."""
        self._file.append(
            {"settings": choice.settings(), "repeat": repeat, "outcome": asdict(outcome)}
        )
        self._trials[_make_key(choice.settings(), repeat)] = outcome


def _make_key(settings: Mapping[str, str], repeat: int) -> str:
    """Return a text that is the same for the same settings and repeat, to look up trials by it."""
    return json.dumps([settings, repeat], sort_keys=True)
