"""How a trainer that we started ends where something is wrong that the user can mend."""

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
    """Say it in one line, on stderr and where that is a log on the terminal, and end with status 2.

    What gin and Fiddle raise is a copy with the place in the configuration on further lines, hence
    the three fields rather than its text. Threads of TensorStore and of data loading may still run:
    they must not turn this into a hang or a crash.

    Args:
      error: what is wrong.
      printed: whether it stands on stderr already.
    """
    line = escape(f"{error.where}: {error.what}; {error.do}", keep="")
    with contextlib.suppress(OSError, ValueError):  # whoever read it may have gone
        sys.stdout.flush()
    if printed:
        log.write_to_terminal(f"rosetta: {line}")
    else:
        log.error(line, terminal=True)
    stop_signals.run_exit_functions()
    os._exit(exit_status.USER_ERROR)
