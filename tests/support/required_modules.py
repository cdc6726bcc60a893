"""What tests that need JAX begin with: they run by the Python of a baked environment, or by one with a lock's packages."""

from __future__ import annotations

from typing import Any

import pytest

REASON = "NOT CHECKED here: needs the packages of a baked environment (python build.py test --inside lock:t5x TEST)"


def need_modules(*modules: str) -> Any:
    """Skip a test module, loudly, where one of these cannot be imported; returns the last one."""
    found = None
    for module in modules:
        found = pytest.importorskip(module, reason=REASON)
    return found


def need_current(*modules: str) -> None:
    """As `need`; skip a test module, too, of what pax-1.4 has not, with the JAX of its time."""
    need_modules(*modules)
    if not hasattr(need_modules("jax").tree_util, "register_dataclass"):
        pytest.skip(
            "NOT CHECKED on this line: it is of what the JAX or the Praxis of pax-1.4 lacks",
            allow_module_level=True,
        )
