"""Measure goodput: the share of a run's time that was spent in steps that count.

The measurement continues over restarts, in FOLDER/goodput.json. A step that was trained again after
a restart counts once. The time between the last report of one start and the next start does not
belong to the run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from rosetta.core import run_folders
from rosetta.core.value_parsing import is_address
from rosetta.health import PROCESS_START

FILE = "goodput.json"
# Enough to tell how much time the steps up to a checkpoint took.
_MAX_POINTS = 200


class Goodput:
    """Measures the goodput of a run, in its first process.

    Args:
      folder: of the run. In an object store, or without a folder, nothing is kept over restarts.

    Attributes:
      starts: how often the run was started, this start included.
    """

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None or is_address(folder) else Path(folder, FILE)
        self._earlier_seconds = 0.0  # that earlier starts ran, up to their last report
        self._points: list[tuple[int, float]] = []  # (step, seconds in steps up to it)
        self.starts = 1
        try:
            if self._path and self._path.exists():
                self._read(self._path)
        except (ValueError, KeyError, TypeError, OSError):
            self._points = []

    def _read(self, path: Path) -> None:
        """Read what earlier starts of the run measured."""
        record = json.loads(path.read_text())
        # The file of an earlier release has the time of the first start instead. It includes the
        # pauses up to the last report.
        if "seconds" not in record:
            record["seconds"] = max(path.stat().st_mtime - float(record["first_start"]), 0.0)
        points = [(int(step), float(seconds)) for step, seconds in record["points"]]
        seconds, starts = float(record["seconds"]), int(record["starts"]) + 1
        self._earlier_seconds, self._points, self.starts = seconds, points, starts

    def resume_at(self, step: int) -> None:
        """Record that a start resumes at a step: work after this step no longer counts."""
        kept = [point for point in self._points if point[0] <= step]
        following = next((point for point in self._points if point[0] > step), None)
        if following is not None:
            previous = kept[-1] if kept else (0, 0.0)
            share = (step - previous[0]) / (following[0] - previous[0])
            kept.append((step, previous[1] + share * (following[1] - previous[1])))
        self._points = kept or [(step, 0.0)]

    def record(self, step: int, seconds: float) -> float:
        """Record the seconds in steps since the last report; return the goodput, from 0 to 1."""
        if not self._points:
            self.resume_at(step)
        self._points.append((step, self._points[-1][1] + seconds))
        if len(self._points) > _MAX_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
        run_seconds = self._earlier_seconds + time.time() - PROCESS_START
        if self._path:
            record = {
                "schema": 2,
                "seconds": run_seconds,
                "starts": self.starts,
                "points": self._points,
            }
            try:
                run_folders.write_file(self._path, json.dumps(record))
            except OSError:
                self._path = None
        return min(self._points[-1][1] / max(run_seconds, 1e-9), 1.0)
