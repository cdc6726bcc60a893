"""Import Paxml without the lines that its libraries print while they are imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING

from rosetta.core import log, tensorflow_import

if TYPE_CHECKING:
    from collections.abc import Iterator


def import_paxml() -> None:
    """Import Paxml, Praxis and rosetta's experiments, and parse Paxml's flags."""
    flags, logging = importlib.import_module("absl.flags"), importlib.import_module("absl.logging")
    logging.set_verbosity(logging.ERROR)
    with hold_back_stderr():
        tensorflow_import.import_tensorflow()
        importlib.import_module("rosetta.pax.configs")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["rosetta"])


@contextlib.contextmanager
def hold_back_stderr() -> Iterator[None]:
    """Drop what a block writes to standard error, unless the block fails.

    The lines of compiled libraries go to the file descriptor, past sys.stderr. With the log level
    "debug" nothing is dropped.
    """
    if log.read_level(os.environ) == "debug":
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held.seek(0)
            os.write(original, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
