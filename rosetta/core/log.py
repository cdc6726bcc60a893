"""Write notes, warnings, progress and debug lines to stderr.

The lines go through a logger of the standard library, `rosetta`. The results of a command go to
stdout, and the line of an error is printed at every level. `--log-level` sets the level of a
program. Through ROSETTA_LOG_LEVEL, it also sets the level of the processes that the program starts.
Only the standard library is used, and Python 3.9 runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import shutil
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from rosetta.core import secrets, value_parsing
from rosetta.core.errors import UserError
from rosetta.core.variables.choices import LOG_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LEVEL_VARIABLE = "ROSETTA_LOG_LEVEL"
# A file descriptor of the terminal, for the lines of this module while stderr goes to a file.
TERMINAL_VARIABLE = "ROSETTA_PROGRESS_FD"
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
_BAR_WIDTH = 24
_SECONDS_BETWEEN_BARS = 0.1
_SECONDS_BETWEEN_LINES = 30.0  # where there is no terminal
_LEVELS = {name: getattr(logging, name.upper()) for name in LOG_LEVELS}


class Output:
    """The lines of one program.

    Attributes:
      logger: The logger of the standard library.
    """

    def __init__(self, name: str, prefixes: Mapping[int, str], clean: Callable[[str], str]) -> None:
        """Set the logger up.

        Args:
          name: The name of the logger.
          prefixes: Level -> the text before a line.
          clean: A function that takes out of a line what must not be printed.
        """
        self.logger = logging.getLogger(name)
        self.logger.propagate = False  # libraries give the root logger handlers of their own
        self.logger.handlers[:] = [_Handler()]
        self.logger.handlers[0].setFormatter(_Formatter(prefixes, clean))
        self.logger.setLevel(_LEVELS.get(os.environ.get(LEVEL_VARIABLE, ""), INFO))
        self._shown: set[str] = set()

    def write(
        self,
        level: int,
        text: str,
        *,
        prefix: bool = True,
        once: bool = False,
        fit: Callable[[int], str] | None = None,
    ) -> None:
        """Write a line if the level is shown.

        While stderr goes to a log file, the line is also written to the terminal.

        Args:
          level: DEBUG, INFO, WARNING or ERROR.
          text: One line, or several.
          prefix: Whether the text begins with the prefix of its level.
          once: Whether a text that this process has written before is left out.
          fit: A function from a width to a shorter form of the line. On a terminal beside a log
            file, the line then takes the place of the last such line if nothing came between.
        """
        if once and text in self._shown:
            return
        if once:
            self._shown.add(text)
        self.logger.log(level, text, extra={"prefix": prefix, "fit": fit})

    def is_shown(self, level: int) -> bool:
        """Return whether lines of a level are shown."""
        return self.logger.isEnabledFor(level)

    def forget_shown(self) -> None:
        """Forget which texts were written with `once`."""
        self._shown.clear()

    @contextlib.contextmanager
    def use_level(self, level: str | None) -> Iterator[None]:
        """Show lines of a level and above in this context, also in the processes that it starts.

        "debug" also shows the commands that are started, and the traceback of an exception that is
        not a UserError.

        Args:
          level: One of LOG_LEVELS; None for the one in ROSETTA_LOG_LEVEL, or else "info".

        Raises:
          UserError: The value of ROSETTA_LOG_LEVEL is not valid.
        """
        former_level, former_variable = self.logger.level, os.environ.get(LEVEL_VARIABLE)
        chosen_level = level or read_level(os.environ)
        if level:
            os.environ[LEVEL_VARIABLE] = level
        self.logger.setLevel(_LEVELS[chosen_level])
        if chosen_level == "debug":
            self._show_commands()
        try:
            yield
        except Exception as raised:
            if not isinstance(raised, UserError):
                self.write(DEBUG, traceback.format_exc().rstrip())
            raise
        finally:
            self.logger.setLevel(former_level)
            os.environ.pop(LEVEL_VARIABLE, None)
            if former_variable is not None:
                os.environ[LEVEL_VARIABLE] = former_variable

    def _show_commands(self) -> None:
        """Show every command that this process starts. Python cannot remove an audit hook."""
        if self not in _showing:
            _showing.append(self)
            sys.addaudithook(self._show_command)

    def _show_command(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Write a line for an audit event that starts a process."""
        if event not in ("subprocess.Popen", "os.exec") or not self.is_shown(DEBUG):
            return
        argv = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
        self.write(DEBUG, f"start: {shlex.join(map(os.fsdecode, argv))}")


_showing: list[Output] = []


class _Formatter(logging.Formatter):
    def __init__(self, prefixes: Mapping[int, str], clean: Callable[[str], str]) -> None:
        super().__init__()
        self._prefixes, self._clean = prefixes, clean

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with its prefix, without what must not be printed."""
        prefix = self._prefixes.get(record.levelno, "") if getattr(record, "prefix", True) else ""
        return self._clean(f"{prefix}{record.getMessage()}")


class _Handler(logging.Handler):
    """Writes lines to the stderr of this moment.

    Errors are ignored: the work goes on if the reader is gone, like `tee` after Ctrl-C, or if the
    disk is full.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line in one piece, because other threads write too."""
        line = self.format(record)
        with contextlib.suppress(OSError, ValueError):
            _count.clear()
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        write_to_terminal(line, fit=getattr(record, "fit", None))


_output = Output(
    "rosetta",
    {DEBUG: "rosetta: debug: ", INFO: "rosetta: ", WARNING: "rosetta: ", ERROR: "rosetta: "},
    secrets.redact_text,
)
is_shown, use_level, forget_shown = _output.is_shown, _output.use_level, _output.forget_shown


def info(
    text: str,
    *,
    prefix: bool = True,
    once: bool = False,
    fit: Callable[[int], str] | None = None,
) -> None:
    """Write a note or progress; see Output.write."""
    _output.write(INFO, text, prefix=prefix, once=once, fit=fit)


def warn(text: str, *, prefix: bool = True, once: bool = False) -> None:
    """Write that something is not as the user asked for, or will do harm; see Output.write."""
    _output.write(WARNING, text, prefix=prefix, once=once)


def debug(text: str) -> None:
    """Write what helps to find the cause of a problem."""
    _output.write(DEBUG, text)


def error(text: str) -> None:
    """Write why a process ends; every level shows it."""
    _output.write(ERROR, text)


class _Terminal:
    """The terminal of a process whose stderr goes to a log file.

    A line is written in one piece, without a lock, because a handler of a signal writes lines, too.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._has_open_line = False  # whether a line that may be replaced is the last one

    def adopt(self) -> None:
        """Take the descriptor out of the environment, so that child processes do not use it.

        A child process may have closed it, and have opened something else under its number. So may
        a profiler that started this process: a descriptor that is not open is not used.
        """
        descriptor = self._find_descriptor()
        os.environ.pop(TERMINAL_VARIABLE, None)
        self._descriptor = None
        if descriptor is not None:
            with contextlib.suppress(OSError, OverflowError):
                os.set_inheritable(descriptor, False)
                self._descriptor = descriptor

    def _find_descriptor(self) -> int | None:
        if self._descriptor is not None:
            return self._descriptor
        return value_parsing.parse_digits(os.environ.get(TERMINAL_VARIABLE, ""))

    def is_used(self) -> bool:
        """Return whether lines go to a terminal besides stderr."""
        return self._find_descriptor() is not None

    def write(self, line: str, *, fit: Callable[[int], str] | None = None) -> None:
        """Write a line; nothing happens if the terminal is gone.

        Args:
          line: The line.
          fit: See Output.write.
        """
        descriptor = self._find_descriptor()
        if descriptor is None:
            return
        with contextlib.suppress(OSError, OverflowError):
            if fit and os.isatty(descriptor):
                width = os.get_terminal_size(descriptor).columns or 80
                start = "\r\x1b[K" if self._has_open_line else ""
                self._has_open_line = True
                text = secrets.redact_text(fit(width - 1))[: width - 1]
                os.write(descriptor, f"{start}{text}".encode())
                return
            start = "\n" if self._has_open_line else ""
            self._has_open_line = False
            os.write(descriptor, f"{start}{secrets.redact_text(line)}\n".encode())

    def end_line(self) -> None:
        """End a line that might still be replaced, before the process ends."""
        descriptor = self._find_descriptor()
        if descriptor is not None and self._has_open_line:
            self._has_open_line = False
            with contextlib.suppress(OSError):
                os.write(descriptor, b"\n")


_terminal = _Terminal()
write_to_terminal, adopt_terminal = _terminal.write, _terminal.adopt
uses_terminal, end_terminal_line = _terminal.is_used, _terminal.end_line


class _Count:
    """The changing line at the end of a terminal: a count, or a bar."""

    def __init__(self) -> None:
        self._is_open = False  # whether the line is the last one, and may be replaced

    def show(self, text: str, *, last: bool = False) -> None:
        """Show a changing count in one line of a terminal. Elsewhere, do nothing.

        Args:
          text: The count; "" to clear the line.
          last: Whether the count stays, so that the next line is written below.
        """
        if is_terminal_shown():
            end = "\n" if last else ""
            self._is_open = bool(text) and not last
            self._clear_line()
            sys.stderr.write(f"{text}{end}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Clear the count, so that a line takes its place."""
        is_open, self._is_open = self._is_open, False
        if is_open and sys.stderr.isatty():
            self._clear_line()

    def _clear_line(self) -> None:
        """Go to the start of the terminal's last line, and clear it."""
        # A stream of the command line escapes what controls a terminal in the texts of others.
        getattr(sys.stderr, "write_control", sys.stderr.write)("\r\x1b[K")


def is_terminal_shown() -> bool:
    """Return whether stderr is a terminal that shows counts and bars."""
    return is_shown(INFO) and sys.stderr.isatty()


_count = _Count()
show_count = _count.show


class _ProgressBar:
    """The progress of one piece of work whose length is known."""

    def __init__(self) -> None:
        self._action = self._note = ""
        self._first = self._number = 0
        self._started = self._shown = 0.0

    def show(
        self,
        action: str,
        number: int,
        total: int,
        *,
        unit: str = "",
        note: str = "",
        estimates: bool = True,
    ) -> None:
        """Show how many parts of a piece of work are done: as a bar on a terminal, else in lines.

        A line comes each 30 s, so that the log of a short piece of work has none.

        Args:
          action: What is done with each part, such as "writing".
          number: The number of the current part, from 1.
          total: The number of all parts.
          unit: What is counted, such as "MB".
          note: What is done at this moment; only a bar shows it.
          estimates: Whether all parts take about the same time, so that the time left is known.
        """
        now = time.monotonic()
        if action != self._action or number < self._number:
            self._action, self._first = action, number
            self._started = self._shown = now
        self._number = number
        counted = f" {unit}" if unit else ""
        rest = self._format_rest(now, total) if estimates else ""
        if not sys.stderr.isatty():
            if now - self._shown >= _SECONDS_BETWEEN_LINES:
                self._shown = now
                info(f"{action}: {number:,} of {total:,}{counted}{rest}")
        elif (
            number in (self._first, total)
            or note != self._note
            or now - self._shown >= _SECONDS_BETWEEN_BARS
        ):
            self._shown, self._note = now, note
            bar = "#" * (_BAR_WIDTH * number // max(total, 1))
            line = f"{action} [{bar:<{_BAR_WIDTH}}] {number:,}/{total:,}{counted}{rest}"
            text = f"{line}, {note}" if note else line
            # A line that wraps cannot be cleared.
            show_count(text[: shutil.get_terminal_size().columns - 1], last=number == total)

    def _format_rest(self, now: float, total: int) -> str:
        """Return the time that is left at this speed; "" if it is not known."""
        done = self._number - self._first
        if not done or self._number == total:
            return ""
        minutes, seconds = divmod(round((now - self._started) * (total - self._number) / done), 60)
        return f", {minutes}:{seconds:02d} left"


show_progress = _ProgressBar().show


def add_level_option(parser: argparse._ActionsContainer) -> None:
    """Add --log-level to a parser or a group of its options."""
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        metavar="LEVEL",
        default=argparse.SUPPRESS,  # a subcommand must not undo the option before it
        help=(
            "show only lines of this level and above: debug, info, warning or error (default: "
            "ROSETTA_LOG_LEVEL, or else info)"
        ),
    )


def read_level(variables: Mapping[str, str]) -> str:
    """Return the level that ROSETTA_LOG_LEVEL sets, "info" if it sets none.

    Raises:
      UserError: The value is not valid.
    """
    level = variables.get(LEVEL_VARIABLE) or "info"
    return value_parsing.parse_choice(LEVEL_VARIABLE, level, LOG_LEVELS)
