"""What tests that need JAX begin with: they run by the Python of a baked environment, or by one with a lock's packages."""

from __future__ import annotations

from typing import Any

import pytest

REASON = "NOT CHECKED here: needs the packages of a baked environment (python build.py test --inside lock:t5x TEST)"


def need(*modules: str) -> Any:
    """Skip a test module, loudly, where one of these cannot be imported; returns the last one."""
    found = None
    for module in modules:
        found = pytest.importorskip(module, reason=REASON)
    return found
