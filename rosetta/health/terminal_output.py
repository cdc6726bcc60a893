"""Write to the terminal what a trainer's user has to see while its output goes to a log file.

The lines of rosetta.core.log go there by themselves. This module adds the warnings of libraries, a
line for each place in the code, and the tracebacks of exceptions that nothing catches.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import traceback
from typing import TYPE_CHECKING

from rosetta.core import log, value_parsing
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from types import TracebackType

# A pipe to the process that reports a crash, see rosetta.launch.crash_report.
END_VARIABLE = "ROSETTA_END_FD"
# T5X warns of each array of the optimizer that a finetuning or an evaluation leaves out, and
# TensorFlow of functions in Python that stay in Python.
_EXPECTED_WARNINGS = ("state_utils.py", "ag_logging.py")
_end_descriptor: int | None = None


def connect_terminal() -> None:
    """Prepare this process for a log file beside the terminal, if its launcher has made one.

    Programs that the process starts later do not write to the terminal.
    """
    global _end_descriptor  # noqa: PLW0603 (a descriptor is the process's)
    log.adopt_terminal()
    text = os.environ.pop(END_VARIABLE, "")
    if not log.uses_terminal():
        return
    descriptor = value_parsing.parse_digits(text)
    if descriptor is not None:
        with contextlib.suppress(OSError, OverflowError):
            os.set_inheritable(descriptor, False)
            _end_descriptor = descriptor
    for register in (atexit.register, stop_signals.call_before_exit):
        register(log.end_terminal_line)
        register(mark_end_reported)
    logging.getLogger("rosetta").addHandler(_EndHandler(logging.ERROR))
    logging.getLogger().addHandler(_WarningHandler(logging.WARNING))
    sys.excepthook = _write_exception


def mark_end_reported() -> None:
    """Tell the reporter of crashes that the terminal shows how this process ended."""
    global _end_descriptor  # noqa: PLW0603 (a descriptor is the process's)
    if _end_descriptor is not None:
        with contextlib.suppress(OSError):
            os.write(_end_descriptor, b".")
        _end_descriptor = None


class _EndHandler(logging.Handler):
    """Marks the end of a run as reported when an error is logged, which ends the run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Mark the end as reported."""
        del record
        mark_end_reported()


class _WarningHandler(logging.Handler):
    """Writes the first warning of each place in the libraries' code to the terminal."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._shown: set[tuple[str, int]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the first line of a warning, if its place has not warned before."""
        place = (record.pathname, record.lineno)
        name = os.path.basename(record.pathname)
        if place in self._shown or name in _EXPECTED_WARNINGS:
            return
        self._shown.add(place)
        first_line = record.getMessage().strip().partition("\n")[0]
        log.write_to_terminal(f"{name}:{record.lineno}: {record.levelname.lower()}: {first_line}")


def _write_exception(
    kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    """Write the traceback of an exception that nothing caught, to stderr and to the terminal."""
    sys.__excepthook__(kind, error, place)
    log.write_to_terminal("".join(traceback.format_exception(kind, error, place)).rstrip())
    mark_end_reported()
