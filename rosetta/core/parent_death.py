"""Make a process end when the process that started it ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, signal_number: int = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends, even if the parent is killed.

    The child calls this function before it executes a program. If the parent has ended already,
    this process ends with status 1.

    Args:
      parent: The process id of the parent.
      signal_number: The signal that the kernel sends.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)
