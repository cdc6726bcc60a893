"""Run the builder in its own environment, `.venv`, in place of the Python that build.py has.

This module runs in each call of build.py, and may run before the environment exists. So it imports
little, and only the standard library and modules that do the same.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from builder.core import environment_stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

# A missing package and an early Ctrl-C end with one line too, not with a traceback.
_RUN = """import sys
sys.path.insert(0, sys.argv.pop(1))
from rosetta.core import exit_status
try:
    from builder.cli import main
    status = main(sys.argv[1:])
except ImportError as error:
    status = f"rosetta: the builder's own environment is damaged ({error}); \
delete the folder .venv and run again"
except KeyboardInterrupt:
    status = exit_status.INTERRUPTED
if isinstance(status, str):
    print(status, file=sys.stderr)
sys.exit(exit_status.USER_ERROR if isinstance(status, str) else status)
"""


def hand_over(root: str, arguments: Sequence[str]) -> int:
    """Run the builder in its own environment, in place of this process.

    Args:
        root: The folder of the checkout. Its environment is up to date.
        arguments: The words of the command line, without the program.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    python = environment_stamp.locate_python(root)
    return os.execv(python, [python, "-I", "-c", _RUN, root, *arguments])  # noqa: S606 - it replaces this process
