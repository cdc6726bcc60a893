"""Type keys at a real shell, which runs on a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SECONDS = 20.0


@dataclass
class Shell:
    """An interactive shell, and the file to which `rosetta` writes its words there."""

    terminal: int
    words: Path

    def type(self, keys: str) -> list[str]:
        """Type a command line that calls `rosetta`, with tabs; return the words that it gets."""
        self.words.unlink(missing_ok=True)
        self.send(f"{keys}\n")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                if (text := self.words.read_text()).endswith("\0\0"):
                    return text[:-2].split("\0")
            time.sleep(0.01)
        raise TimeoutError(f"rosetta was not called by {keys!r}")

    def send(self, keys: str) -> None:
        """Type keys."""
        os.write(self.terminal, keys.encode())


@contextlib.contextmanager
def start_shell(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path, *setup: str
) -> Iterator[Shell]:
    """Start an interactive shell in a folder.

    Args:
      argv: The shell and its options.
      environment: Its environment.
      folder: Its folder; the words that `rosetta` gets lie beside it.
      setup: Lines to type at first.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(argv[0], list(argv), dict(environment))  # noqa: S606 (the shell under test)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    reader = threading.Thread(target=_read_all_output, args=(terminal,), daemon=True)
    reader.start()
    words = folder.parent / "words"
    shell = Shell(terminal, words)
    try:
        done = r"""printf '%s\0' "$@" "" >"$WORDS.new"; mv "$WORDS.new" "$WORDS" """
        for line in (f"WORDS={words}", f"rosetta() {{ {done}; }}", *setup):
            shell.send(f"{line}\n")
        assert shell.type("rosetta ready") == ["ready"]
        yield shell
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
        reader.join(SECONDS)


def _read_all_output(terminal: int) -> None:
    """Read what the shell shows, so that it never waits for a reader."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass
