"""What T5X's programs import and do not need, kept out of the way."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Keras, which TensorFlow loads and T5X does not use, tries to import both for its wrappers around
# them, and does without where they are missing.
UNUSED = ("sklearn", "pandas")


@contextlib.contextmanager
def missing(*names: str) -> Iterator[None]:
    """While it lasts, importing these modules fails as if they were not installed; those that are
    loaded already stay.
    """
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]


def install() -> None:
    """Import TensorFlow without what Keras would bring along: about a second of four.

    Later imports of it work as ever.
    """
    with missing(*UNUSED):
        import tensorflow  # noqa: F401, ICN001
