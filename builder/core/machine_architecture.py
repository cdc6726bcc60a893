"""The processor architectures that rosetta is built for, by the kernel's names and by those of
images.
"""

from __future__ import annotations

import platform

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def here() -> str:
    """Return this machine's architecture, as images name it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())
