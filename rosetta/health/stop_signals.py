"""Handle SIGTERM, SIGUSR1 and SIGINT, which end a run with a checkpoint.

The first signal requests a stop: the running step ends, a checkpoint is written, and the process
ends with status 75 ("start again later"). A second signal ends the process at once. Slurm sends one
of the signals before a job's time limit (`--signal`), Kubernetes before it evicts a pod, and a
terminal at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from rosetta.core import exit_status, log

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# Seconds after the first signal in which another one counts as the same: a terminal, or `timeout`,
# signals all processes of a group, and a parent among them passes the signal on.
ECHO_SECONDS = 1.0

_first_signal: list[tuple[str, float]] = []  # its name, and when it came (time.monotonic)
_exit_functions: list[Callable[[], object]] = []
_request_stop: Callable[[str], None] | None = None


def install_handlers() -> None:
    """Handle the stop signals from now on.

    Call this again once JAX's processes have met: JAX's coordination service then replaces the
    handler of SIGTERM.
    """
    _set_handlers(_handle_signal)


def restore_default_handlers() -> None:
    """Let the signals end the process as they would end any program."""
    _set_handlers(signal.SIG_DFL)


def call_before_exit(function: Callable[[], object]) -> None:
    """Register a function to call before the process ends with one line.

    Such an end leaves atexit out, because threads of JAX may hang there.
    """
    _exit_functions.append(function)


def _set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Set the handler of all stop signals; Python allows that in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, handler)


def set_stop_request(request_stop: Callable[[str], None]) -> None:
    """Set the function that a signal calls with its name; an earlier signal calls it now."""
    global _request_stop  # noqa: PLW0603 (signals are the process's)
    _request_stop = request_stop
    if _first_signal:
        request_stop(_first_signal[0][0])


def _handle_signal(number: int, frame: FrameType | None) -> None:
    """Request a stop at the first signal; end the process at the second."""
    del frame
    name, now = signal.Signals(number).name, time.monotonic()
    if _first_signal:
        if now - _first_signal[0][1] > ECHO_SECONDS:
            _write_line(f"{name} for the second time: ended at once")
            os._exit(128 + number)
        return
    _first_signal.append((name, now))
    _write_line(
        f"{name}: the run ends after the running step, with a checkpoint; a second signal ends it "
        "at once"
    )
    if _request_stop:
        _request_stop(name)


def _write_line(line: str) -> None:
    """Write a line from a signal handler, where Python's own buffers may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, f"rosetta: {line}\n".encode())
    log.write_to_terminal(f"rosetta: {line}")


def exit_with_line(line: str, code: int = exit_status.ENDED_EARLY) -> NoReturn:
    """Print one line and end the process at once; nothing that still runs in it is waited for."""
    log.error(line)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    run_exit_functions()
    os._exit(code)


def run_exit_functions() -> None:
    """Call the functions that `call_before_exit` registered."""
    for function in _exit_functions:
        function()
