"""The processor architectures that rosetta is built for."""

from __future__ import annotations

import platform

# The name of the kernel -> the name in images.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def detect_architecture() -> str:
    """Return the name that images use for this machine's architecture, for example `amd64`."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())
