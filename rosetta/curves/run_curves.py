"""Read the curves of runs from their progress.jsonl files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError

PROGRESS_FILE = "progress.jsonl"
LOSS = "loss"


@dataclass(frozen=True)
class Curve:
    """The values of a run over its steps.

    Attributes:
      name: Of the run.
      points: Step -> value, in the order of the steps.
    """

    name: str
    points: dict[int, float]


def read_curve(path: str, value: str = LOSS) -> Curve:
    """Read a curve of a run.

    A step that a restart has reported again counts with its last value. Values that are not finite
    are left out.

    Args:
      path: The folder of a run, or its progress.jsonl.
      value: A key of the reports, or NAME/METRIC of the evaluations.

    Raises:
      UserError: There is no such file, it is damaged, or it has no such value.
    """
    file = find_progress_file(path)
    points: dict[int, float] = {}
    known: set[str] = set()
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        values = _read_values(file, number, line)
        known.update(values)
        if value in values:
            points[int(values["step"])] = values[value]
    if not points:
        known.discard("step")
        names = ", ".join(sorted(known)) or "none"
        raise UserError(
            f"has no values of {value!r}",
            str(file),
            f"choose another value; the file has: {names}",
            kind=UNKNOWN if known else MISSING,
            value=value,
        )
    return Curve(file.absolute().parent.name, dict(sorted(points.items())))


def find_progress_file(path: str) -> Path:
    """Return the progress.jsonl of a run: the path itself, or the only one in the folder or below.

    Raises:
      UserError: There is none, or there are several.
    """
    place = Path(path)
    if place.is_file():
        return place
    if (place / PROGRESS_FILE).is_file():
        return place / PROGRESS_FILE
    files = sorted(place.rglob(PROGRESS_FILE)) if place.is_dir() else []
    if len(files) == 1:
        return files[0]
    if files:
        raise UserError(
            f"has several runs: {', '.join(str(file.parent) for file in files[:5])}",
            path,
            "name the folder of each run",
            kind=INVALID,
        )
    raise UserError(
        f"has no {PROGRESS_FILE}",
        path,
        "name the folder of a run, which writes the file with its first report",
        kind=MISSING,
    )


def _read_values(file: Path, number: int, line: str) -> dict[str, float]:
    """Return the finite numbers of a line by their names; those of an evaluation are NAME/METRIC.

    Raises:
      UserError: The line is not a report.
    """
    try:
        report: dict[str, Any] = json.loads(line)
        values: dict[str, Any] = {name: report[name] for name in report if name != "evaluation"}
        for task, metrics in report.get("evaluation", {}).items():
            values |= {f"{task}/{metric}": metrics[metric] for metric in metrics}
        int(values["step"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(
            f"is not a report of a run ({type(error).__name__})",
            f"{file}:{number}",
            "remove the line, or name the file of a run",
            kind=INVALID,
        ) from None
    return {name: float(item) for name, item in values.items() if _is_finite(item)}


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]  # it is a number
