"""SIGTERM, SIGUSR1 and SIGINT: the running step ends, a checkpoint is written, and the process ends
with status 75, "go on later". A second signal ends it at once.

Slurm sends one of them before a job's time is up (`--signal`), Kubernetes before it takes a pod
away, a terminal at Ctrl-C.
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
# s after the first signal in which another one is the same: a terminal, or `timeout`, gives it to
# all processes of a group, and a parent among them passes it on.
ECHO_SECONDS = 1.0

_first_signal: list[tuple[str, float]] = []  # the first one, and when (time.monotonic)
_exit_functions: list[Callable[[], object]] = []
_request_stop: Callable[[str], None] | None = None


def install_handlers() -> None:
    """Take the signals; to be called again once JAX's processes have met, as its own service then
    takes SIGTERM.
    """
    _set_handlers(_handle_signal)


def restore_default_handlers() -> None:
    """Let the signals end the process as they would any."""
    _set_handlers(signal.SIG_DFL)


def call_before_exit(function: Callable[[], object]) -> None:
    """Have a function called before the process is ended with one line, which leaves atexit out:
    threads of JAX may hang there.
    """
    _exit_functions.append(function)


def _set_handlers(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python's rule
        for number in SIGNALS:
            signal.signal(number, handler)


def set_stop_request(ask: Callable[[str], None]) -> None:
    """Have the signals, one that came before included, ask for a stop by this function."""
    global _request_stop  # noqa: PLW0603 (signals are the process's)
    _request_stop = ask
    if _first_signal:
        ask(_first_signal[0][0])


def _handle_signal(number: int, frame: FrameType | None) -> None:
    del frame
    name, now = signal.Signals(number).name, time.monotonic()
    if _first_signal:
        if now - _first_signal[0][1] > ECHO_SECONDS:
            _write_line(f"{name} for the second time: ended at once")
            os._exit(128 + number)
        return
    _first_signal.append((name, now))
    _write_line(
        f"{name}: it ends after the running step, with a checkpoint; a second signal ends it "
        "at once"
    )
    if _request_stop:
        _request_stop(name)


def _write_line(line: str) -> None:
    """Say a line from within a handler, where what Python buffers may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, f"rosetta: {line}\n".encode())
    log.write_to_terminal(f"rosetta: {line}")


def exit_with_line(line: str, code: int = exit_status.ENDED_EARLY) -> NoReturn:
    """End a run before its time, with one line; nothing that still runs in it is waited for."""
    log.error(line, terminal=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    run_exit_functions()
    os._exit(code)


def run_exit_functions() -> None:
    """Call the functions that `last` was given."""
    for function in _exit_functions:
        function()
