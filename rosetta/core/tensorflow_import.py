"""Import TensorFlow without packages that Keras would load; the trainers start with this."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# TensorFlow loads Keras, which T5X and Paxml do not use. Keras tries to import these packages for
# its wrappers around them, and works without them.
UNUSED_MODULES = ("sklearn", "pandas")


@contextlib.contextmanager
def hide_modules(*names: str) -> Iterator[None]:
    """Make imports of these modules fail inside a block, as if they were not installed.

    Modules that are already loaded stay available.
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


def import_tensorflow() -> None:
    """Load TensorFlow without `UNUSED_MODULES`, which saves about one of four seconds.

    Later `import tensorflow` statements find the loaded module.
    """
    with hide_modules(*UNUSED_MODULES):
        # Not an import statement: this package must also run where TensorFlow is not installed.
        importlib.import_module("tensorflow")
