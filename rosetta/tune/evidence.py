"""The evidence of a tuning: a line for what was tuned where, then one for each trial.

A tuning that was ended goes on from it.
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
    """A file of trials, one JSON object a line.

    Args:
      path: of the file; it need not be there.
      about: what is tuned: preset, settings, card, versions, steps, values. Trials of anything else
        do not count.

    Raises:
      UserError: the file is of another tuning, or none.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._trials = path, dict[str, Outcome]()
        head = {"schema": SCHEMA_VERSION, **about}
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [
            line for line in lines if line.endswith("\n")
        ]  # the last one may have been cut off
        try:
            found = [json.loads(line) for line in whole]
            for each in found[1:]:
                self._trials[_make_key(each["settings"], each["repeat"])] = Outcome(
                    **each["outcome"]
                )
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "it is no evidence of a tuning",
                str(path),
                "name another file, or remove it",
                kind=INVALID,
            ) from None
        if found and found[0] != json.loads(json.dumps(head)):
            odd = _find_differing_keys(found[0], json.loads(json.dumps(head)))
            raise UserError(
                f"it is of a tuning with another {', '.join(odd)}",
                str(path),
                "name another file with --evidence, or remove it",
                kind=DIFFERS,
            )
        text = "".join(whole) if whole else json.dumps(head) + "\n"
        write_atomic(path, text, None)

    def known(self, choice: Choice, repeat: int) -> Outcome | None:
        """Return the outcome of a trial that was made.

        One that was refused, failed or took too long is made again: its cause may have been mended.
        """
        found = self._trials.get(_make_key(choice.settings(), repeat))
        return found if found and found.kind in (OK, OUT_OF_MEMORY) else None

    def add(self, choice: Choice, repeat: int, outcome: Outcome) -> None:
        """Keep a trial."""
        line = json.dumps(
            {"settings": choice.settings(), "repeat": repeat, "outcome": asdict(outcome)}
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._trials[_make_key(choice.settings(), repeat)] = outcome


def _find_differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """List the keys that differ; of mappings in both, the names inside."""
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return [
        word
        for name in names
        for word in (
            _find_differing_keys(one[name], other[name])
            if isinstance(one.get(name), dict) and isinstance(other.get(name), dict)
            else [name]
        )
    ]


def _make_key(settings: Mapping[str, str], repeat: int) -> str:
    return json.dumps([settings, repeat], sort_keys=True)
