"""What a person reads while it works: always on stderr, progress bars only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from rosetta.core.log import DEBUG, ERROR, INFO, WARNING, Output
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


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """One stage of a build: a spinner with the time on a terminal; elsewhere a line at its start
    and at its end.
    """
    start = time.monotonic()
    if _shows_bars():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(redact(name), total=None)
            yield
    else:
        info(f"{name} ...")
        yield
    info(f"{name}: {time.monotonic() - start:.1f} s")


@contextlib.contextmanager
def progress(name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)` for work of known length; off a terminal, print a line at every
    quarter.
    """
    done = 0
    if _shows_bars():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(redact(name), total=total)
            yield lambda n: bar.advance(task, n)
        return
    quarter = 0

    def advance(n: int) -> None:
        nonlocal done, quarter
        done += n
        if total and done * 4 // total > quarter:
            quarter = done * 4 // total
            info(f"{name}: {done} of {total} {unit}")

    yield advance
