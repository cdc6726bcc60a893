"""Show that a long step of a plan is still running, and for how long."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rosetta.core import log

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_BETWEEN_LINES = 30.0


@contextlib.contextmanager
def show_phase(name: str, interval: float = SECONDS_BETWEEN_LINES) -> Iterator[None]:
    """Write a line when a phase begins, each 30 s while it runs, and when it has ended.

    Args:
        name: What is done, for example "compiling the step".
        interval: The seconds between two lines.
    """
    started = time.monotonic()
    ended = threading.Event()

    def show_elapsed() -> None:
        while not ended.wait(interval):
            log.info(f"plan: {name}: {time.monotonic() - started:.0f} s so far")

    log.info(f"plan: {name}")
    thread = threading.Thread(target=show_elapsed, name="plan progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    log.info(f"plan: {name}: done in {time.monotonic() - started:.0f} s")
