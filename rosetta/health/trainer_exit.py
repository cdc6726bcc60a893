"""End a trainer with one line about an error that the user can correct."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from rosetta.core import exit_status, log
from rosetta.core.printable_text import escape
from rosetta.health import stop_signals

if TYPE_CHECKING:
    from rosetta.core.errors import UserError


def exit_with_error(error: UserError, *, printed: bool = False) -> NoReturn:
    """Print an error in one line, and end the process with status 2.

    The line goes to stderr, and to the terminal if stderr is a log file.

    The process ends at once, since threads of TensorStore and of data loading may still run: they
    could turn the end into a hang or a crash.

    Args:
      error: what is wrong. gin and Fiddle raise a copy of it, with the place in the configuration
        on further lines, so its three fields are printed rather than its text.
      printed: whether stderr has the error already.
    """
    line = escape(f"{error.where}: {error.what}; {error.do}", keep="")
    with contextlib.suppress(OSError, ValueError):  # The reader of stdout may have ended.
        sys.stdout.flush()
    if printed:
        log.write_to_terminal(f"rosetta: {line}")
    else:
        log.error(line)
    stop_signals.run_exit_functions()
    os._exit(exit_status.USER_ERROR)
