"""The journal of a bisect: the request, its two ends, and the answer of every build so far.

There is one journal for each manifest, as a file in the cache. The file is replaced after every
answer. A bisect that was killed therefore repeats only the build that was interrupted.
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
    """The options of a bisect. Two bisects with equal requests are the same bisect.

    A bisect of a figure has no command.

    Attributes:
        work: The folder of the builds.
        metric: The figure of a plan that is compared, "" if a command tells builds apart.
        plan: The words after `rosetta plan`, for the metric.
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
    metric: str = ""
    plan: str = ""


@dataclass(frozen=True)
class Trial:
    """The answer that one build gave.

    Attributes:
        key: Identifies the content of the build.
        description: The build in words.
        answer: Whether the build is good, is bad, or was skipped.
        reason: Why the build is bad or was skipped.
        seconds: How long the build and the command took.
        is_end: Whether the build is one of the two ends, which do not count as builds.
        figure: The figure of the build, if the request has a metric.
    """

    key: str
    description: str
    answer: Answer
    reason: str
    seconds: float
    is_end: bool = False
    figure: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the trial as an entry of the journal and of `bisect --status --json`."""
        return {
            "key": self.key,
            "what": self.description,
            "answer": self.answer,
            "why": self.reason,
            "seconds": self.seconds,
            "end": self.is_end,
            "figure": self.figure,
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Trial:
        """Return the trial that `as_json` described."""
        return cls(
            key=entry["key"],
            description=entry["what"],
            answer=entry["answer"],
            reason=entry["why"],
            seconds=entry["seconds"],
            is_end=entry["end"],
            figure=entry.get("figure"),
        )


@dataclass
class Journal:
    """What a bisect remembers between two runs of the command.

    Attributes:
        file: Where the journal is stored.
        request: The options that the bisect was started with.
        ends: The good and the bad end as they were resolved when the bisect started.
        trials: The answers so far, oldest first.
        progress: How much is left to do, in words, or the culprits at the end.
        done: Whether the culprits are known.
    """

    file: Path
    request: Request
    ends: list[dict[str, str]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    progress: str = ""
    done: bool = False

    def find_trial(self, key: str) -> Trial | None:
        """Return the trial of the build with this key, or None if there was no such trial."""
        return next((trial for trial in self.trials if trial.key == key), None)

    @property
    def build_count(self) -> int:
        """The number of builds that were tried, without the two ends."""
        return sum(not trial.is_end for trial in self.trials)

    def add_trial(self, trial: Trial) -> None:
        """Append a trial and save the journal."""
        self.trials.append(trial)
        self.save()

    def save(self) -> None:
        """Write the journal to its file."""
        write_atomic(self.file, json.dumps({"schema": 1, **self.as_json()}, indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Return the whole journal as its file and `bisect --status --json` show it."""
        return {
            "request": asdict(self.request),
            "ends": self.ends,
            "trials": [trial.as_json() for trial in self.trials],
            "left": self.progress,
            "done": self.done,
        }

    def delete(self) -> None:
        """Delete the file, which ends the bisect."""
        self.file.unlink(missing_ok=True)


def journal_path(cache: Cache, manifest: Path) -> Path:
    """Return the path of the journal for a manifest."""
    digest = hashlib.sha256(os.fsencode(manifest.resolve())).hexdigest()
    return cache.path("bisect", f"{digest[:16]}.json")


def load_journal(file: Path) -> Journal | None:
    """Read a journal.

    Returns:
        None if there is no such file.

    Raises:
        UserError: the file is not a journal.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        request = Request(**{**data["request"], "command": tuple(data["request"]["command"])})
        return Journal(
            file,
            request,
            list(data["ends"]),
            [Trial.from_json(entry) for entry in data["trials"]],
            str(data["left"]),
            bool(data["done"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "not a valid journal of a bisect", str(file), "delete it, and start the bisect again"
        ) from error
