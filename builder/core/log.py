"""What a person reads while it works: always on stderr, progress bars only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from builder.core.secrets import redact
from rosetta.core.log import (
    DEBUG,
    ERROR,
    INFO,
    WARNING,
    Output,
    show_count,
    show_progress,
)
from rosetta.core.printable_text import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _clean(text: str) -> str:
    """Return a line without secrets and without characters that control a terminal."""
    return escape(redact(text))


_output = Output("builder", {DEBUG: "debug: ", WARNING: "warning: ", ERROR: "rosetta: "}, _clean)
use_level = _output.use_level


def info(text: str) -> None:
    """Print a note or progress."""
    _output.write(INFO, text)


def warn(text: str) -> None:
    """Print a warning."""
    _output.write(WARNING, text)


def debug(text: str) -> None:
    """Print what helps to find a fault."""
    _output.write(DEBUG, text)


def error(text: str) -> None:
    """Print why a command ends; every level shows it."""
    _output.write(ERROR, text)


def _shows_bars() -> bool:
    return sys.stderr.isatty() and _output.is_shown(INFO)


# The spinner of the current stage; a bar takes its place.
_spinner: Any = None


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """One stage of a build: a spinner with the time on a terminal; elsewhere a line at its start
    and at its end.
    """
    global _spinner  # noqa: PLW0603 (one terminal)
    start = time.monotonic()
    if _shows_bars():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as spinner:
            spinner.add_task(redact(name), total=None)
            former, _spinner = _spinner, spinner
            try:
                yield
            finally:
                _spinner = former
    else:
        info(f"{name} ...")
        yield
    info(f"{name}: {time.monotonic() - start:.1f} s")


@contextlib.contextmanager
def counted_stage(name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """One stage of known length: yield `advance(n)` as `progress` does; a line has its time."""
    start = time.monotonic()
    if not _shows_bars():
        info(f"{name} ...")
    with progress(name, total, unit) as advance:
        yield advance
    info(f"{name}: {time.monotonic() - start:.1f} s")


@contextlib.contextmanager
def progress(name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)` for work of known length, which shows a bar on a terminal; off a
    terminal, print a line at every quarter.
    """
    done = 0
    quarter = 0
    shows_bar = _shows_bars()
    clean_name = _clean(name)

    def advance(n: int) -> None:
        nonlocal done, quarter
        done += n
        if shows_bar:
            show_progress(clean_name, done, total, unit=unit)
        elif total and done * 4 // total > quarter:
            quarter = done * 4 // total
            info(f"{name}: {done} of {total} {unit}")

    spinner = _spinner if shows_bar else None
    if spinner:
        spinner.stop()
    try:
        if shows_bar:
            advance(0)
        yield advance
    finally:
        if shows_bar:
            show_count("")
        if spinner:
            spinner.start()
