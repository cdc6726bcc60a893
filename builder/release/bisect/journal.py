"""What a bisect that is not at its end has to remember: what was asked, and what every build came
to.

A file in the cache, one for each manifest, replaced after every answer. A build that a kill
interrupted has no answer and is made again; no other is.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.release.bisect.search import Answer


@dataclass(frozen=True)
class Request:
    """What a person asked for.

    `work` is the folder of the builds; two bisects with equal requests are one.
    """

    good: str
    bad: str
    distribution: str
    accelerator: str
    stage: str
    python: str
    repeat: int
    command: tuple[str, ...]
    work: str


@dataclass(frozen=True)
class Trial:
    """One build: its key, what it is in words, and what it came to.

    `end` is set for the two that were given, which do not count.
    """

    key: str
    what: str
    answer: Answer
    why: str
    seconds: float
    end: bool = False


@dataclass
class Journal:
    """`ends` are the good and the bad one as they were looked up at first; `left` says how far it
    is; `done` once the result is known.
    """

    file: Path
    request: Request
    ends: list[dict[str, str]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    left: str = ""
    done: bool = False

    def known(self, key: str) -> Trial | None:
        """Return the trial with this key, if the journal has it."""
        return next((trial for trial in self.trials if trial.key == key), None)

    @property
    def count(self) -> int:
        """How many builds were made beside the two ends."""
        return sum(not trial.end for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Append a trial and save the journal."""
        self.trials.append(trial)
        self.save()

    def save(self) -> None:
        """Write the journal to its file."""
        write_atomic(self.file, json.dumps({"schema": 1, **self.as_json()}, indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """All of it, as the file and --status have it."""
        return {
            "request": asdict(self.request),
            "ends": self.ends,
            "trials": [asdict(trial) for trial in self.trials],
            "left": self.left,
            "done": self.done,
        }

    def close(self) -> None:
        """Nothing is to be remembered any more."""
        self.file.unlink(missing_ok=True)


def place(cache: Cache, manifest: Path) -> Path:
    """Return the file for a manifest."""
    return cache.path(
        "bisect", f"{hashlib.sha256(os.fsencode(manifest.resolve())).hexdigest()[:16]}.json"
    )


def load(file: Path) -> Journal | None:
    """Return the journal in a file, if there is one."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        request = Request(**{**data["request"], "command": tuple(data["request"]["command"])})
        return Journal(
            file,
            request,
            list(data["ends"]),
            [Trial(**each) for each in data["trials"]],
            str(data["left"]),
            bool(data["done"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "is no journal of a bisect", str(file), "delete it, and begin again"
        ) from error
