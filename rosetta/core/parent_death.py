"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends, killed or not; called in the
    child, before it executes a program.

    Args:
      parent: the process id of who started it. Where that is gone by now, the process ends with
        status 1.
      number: of the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
