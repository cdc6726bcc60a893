"""Goodput: the share of a run's time that was spent in steps that count, kept over restarts in
FOLDER/goodput.json.

A step that was trained again after a restart counts once. Time between the last report of one start
and the next start does not belong to the run.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from rosetta.core import run_folders
from rosetta.core.value_parsing import is_address
from rosetta.health import PROCESS_START

FILE = "goodput.json"
_MAX_POINTS = 200  # that are kept: enough to say how much time a checkpoint's steps took


class Goodput:
    """Counts for the first process of a run. Nothing is kept in an object store."""

    def __init__(self, folder: str | None) -> None:
        self._path = None if folder is None or is_address(folder) else Path(folder, FILE)
        self._before = 0.0  # s that earlier starts ran, up to their last report
        self._points: list[tuple[int, float]] = []  # (step, seconds in steps up to it)
        self.starts = 1
        try:
            if self._path and self._path.exists():
                kept = json.loads(self._path.read_text())
                # An earlier release's, which knew the first start: with the pauses up to its last
                # report.
                if "seconds" not in kept:
                    kept["seconds"] = max(
                        self._path.stat().st_mtime - float(kept["first_start"]), 0.0
                    )
                points = [(int(step), float(seconds)) for step, seconds in kept["points"]]
                self._before, self._points, self.starts = (
                    float(kept["seconds"]),
                    points,
                    int(kept["starts"]) + 1,
                )
        except (ValueError, KeyError, TypeError, OSError):
            self._points = []

    def begins(self, step: int) -> None:
        """Record that a start resumes at a step: work after this step no longer counts."""
        known = [point for point in self._points if point[0] <= step]
        after = next((point for point in self._points if point[0] > step), None)
        if after is not None:
            before = known[-1] if known else (0, 0.0)
            share = (step - before[0]) / (after[0] - before[0])
            known.append((step, before[1] + share * (after[1] - before[1])))
        self._points = known or [(step, 0.0)]

    def report(self, step: int, seconds: float) -> float:
        """Record the seconds since the last report; return the goodput, from 0 to 1."""
        if not self._points:
            self.begins(step)
        self._points.append((step, self._points[-1][1] + seconds))
        if len(self._points) > _MAX_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
        whole = self._before + time.time() - PROCESS_START
        if self._path:
            try:
                run_folders.write_file(
                    self._path,
                    json.dumps(
                        {
                            "schema": 2,
                            "seconds": whole,
                            "starts": self.starts,
                            "points": self._points,
                        }
                    ),
                )
            except OSError:
                self._path = None
        return min(self._points[-1][1] / max(whole, 1e-9), 1.0)
