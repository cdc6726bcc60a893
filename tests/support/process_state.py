"""Has a process that a test did not start itself ended?"""

from __future__ import annotations

import time
from pathlib import Path


def wait_until_ended(process: int) -> bool:
    """Wait for it, for half a minute at the most."""
    for _ in range(600):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
