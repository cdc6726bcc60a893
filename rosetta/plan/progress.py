"""Show how far a plan or a search is, and that a long phase of it is still running.

A terminal has a bar. Elsewhere, lines say when a phase begins and ends, and each 30 s between.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BETWEEN_BARS = 1.0


class _Parts:
    """The phases of a plan or the trials of a search, of which a bar shows how many are done.

    Attributes:
        action: What the parts belong to, such as "search".
        total: The number of parts, or the largest that it may be; 0 if it is not known.
        are_phases: Whether each phase is a part. All trials take about the same time, phases do
            not.
        done: The number of parts that are done.
    """

    def __init__(self, action: str = "", total: int = 0, *, are_phases: bool = False) -> None:
        self.action = action
        self.total = total
        self.are_phases = are_phases
        self.done = 0

    def have_bar(self) -> bool:
        """Return whether a bar shows the parts: there is a terminal, and some are not done."""
        return self.done < self.total and log.is_terminal_shown()

    def show(self, note: str) -> None:
        """Show how many parts are done, and what is done at this moment."""
        log.show_progress(
            self.action, self.done, self.total, note=note, estimates=not self.are_phases
        )

    def finish(self) -> None:
        """Note that a part is done."""
        if self.have_bar():
            self.done += 1
            self.show("")


_parts = _Parts()  # those of this process


@contextlib.contextmanager
def show_parts(action: str, total: int, *, are_phases: bool = False) -> Iterator[None]:
    """Show on a terminal how many parts of a piece of work are done.

    Args:
        action: What the parts belong to, such as "search".
        total: The number of parts, or the largest that it may be.
        are_phases: Whether each phase is a part. Otherwise finish_part ends one.
    """
    global _parts  # noqa: PLW0603 (one plan or search in a process)
    former, _parts = _parts, _Parts(action, total, are_phases=are_phases)
    try:
        yield
    finally:
        _parts = former
        log.show_count("")


def finish_part() -> None:
    """Note that a part of the innermost show_parts is done."""
    _parts.finish()


@contextlib.contextmanager
def show_phase(name: str, interval: float = SECONDS_BETWEEN_LINES) -> Iterator[None]:
    """Write a line when a phase begins, each 30 s while it runs, and when it has ended.

    On a terminal that has a bar, the bar shows the phase and its time while it runs.

    Args:
        name: What is done, for example "compiling the step".
        interval: The seconds between two lines.
    """
    started = time.monotonic()
    ended = threading.Event()
    has_bar = _parts.have_bar()

    def show_elapsed() -> None:
        while not ended.wait(_SECONDS_BETWEEN_BARS if has_bar else interval):
            elapsed = f"{name}: {time.monotonic() - started:.0f} s so far"
            if has_bar:
                _parts.show(elapsed)
            else:
                log.info(f"plan: {elapsed}")

    if has_bar:
        _parts.show(name)
    else:
        log.info(f"plan: {name}")
    thread = threading.Thread(target=show_elapsed, name="plan progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    log.info(f"plan: {name}: done in {time.monotonic() - started:.0f} s")
    if _parts.are_phases:
        _parts.finish()
