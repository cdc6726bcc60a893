"""Show the end of a log file on the terminal if a trainer ends without saying why.

Native code ends a process without Python: XLA aborts, and the kernel kills. What XLA printed then
is in the log file only. A small process outlives the trainer and shows these lines.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from rosetta.core import secrets
from rosetta.health.terminal_output import END_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

_LAST_LINES = 20
_LAST_BYTES = 16_384


def start_reporter(log_file: Path, terminal: int, env: dict[str, str]) -> None:
    """Start the process that reports a crash of the program that this process will become.

    Args:
      log_file: The file with the output of the program.
      terminal: The file descriptor of the terminal.
      env: The environment of the program, which gets the descriptor of a pipe. The program writes
        a byte into the pipe before it ends, if the terminal shows how it ends.
    """
    begin = log_file.stat().st_size
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        os.set_inheritable(writing, True)
        env[END_VARIABLE] = str(writing)
        return
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        os.close(writing)
        if not os.read(reading, 1):
            text = describe_end(log_file, begin)
            os.write(terminal, text.encode("utf-8", "replace"))
    finally:
        os._exit(0)


def describe_end(log_file: Path, begin: int) -> str:
    """Return the last lines of a log file for the terminal.

    Args:
      log_file: The file.
      begin: The size of the file when the program started; what is before is of an earlier run.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError), open(log_file, "rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    heading = f"rosetta: the run has ended without a message; the last lines of {log_file}:"
    return "\n".join(["", heading, *map(secrets.redact_text, lines), ""])
