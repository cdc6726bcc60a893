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
ECHO = 1.0

_came: list[tuple[str, float]] = []  # the first one, and when (time.monotonic)
_last: list[Callable[[], object]] = []
_ask: Callable[[str], None] | None = None


def take() -> None:
    """Take the signals; to be called again once JAX's processes have met, as its own service then
    takes SIGTERM.
    """
    _each(_handle)


def release() -> None:
    """Let the signals end the process as they would any."""
    _each(signal.SIG_DFL)


def last(function: Callable[[], object]) -> None:
    """Have a function called before the process is ended with one line, which leaves atexit out:
    threads of JAX may hang there.
    """
    _last.append(function)


def _each(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():  # Python's rule
        for number in SIGNALS:
            signal.signal(number, handler)


def asks(ask: Callable[[str], None]) -> None:
    """Have the signals, one that came before included, ask for a stop by this function."""
    global _ask  # noqa: PLW0603 (signals are the process's)
    _ask = ask
    if _came:
        ask(_came[0][0])


def _handle(number: int, frame: FrameType | None) -> None:
    del frame
    name, now = signal.Signals(number).name, time.monotonic()
    if _came:
        if now - _came[0][1] > ECHO:
            _say(f"{name} for the second time: ended at once")
            os._exit(128 + number)
        return
    _came.append((name, now))
    _say(
        f"{name}: it ends after the running step, with a checkpoint; a second signal ends it "
        "at once"
    )
    if _ask:
        _ask(name)


def _say(line: str) -> None:
    """Say a line from within a handler, where what Python buffers may be in use."""
    with contextlib.suppress(OSError):
        os.write(2, f"rosetta: {line}\n".encode())
    log.write_to_terminal(f"rosetta: {line}")


def end(line: str, code: int = exit_status.ENDED_EARLY) -> NoReturn:
    """End a run before its time, with one line; nothing that still runs in it is waited for."""
    log.error(line, terminal=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    run_last()
    os._exit(code)


def run_last() -> None:
    """Call the functions that `last` was given."""
    for function in _last:
        function()
