"""What the gin files of a run come to, without running it: for checks before step 0, for planning,
for tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENTRY_FUNCTIONS = {"train": "train", "eval": "evaluate", "infer": "infer"}


@functools.cache  # gin keeps what it has registered, and takes no second function of the same name
def _make_stand_in(script: str) -> types.ModuleType:
    """Return a module in the place of T5X's script, whose entry gives back what gin passes to
    it.
    """
    entry = ENTRY_FUNCTIONS[script]
    real = getattr(importlib.import_module(f"t5x.{script}"), entry)

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    collect.__name__ = collect.__qualname__ = entry
    collect.__module__ = "__main__"
    collect.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]  # gin refuses names that it lacks
    module = types.ModuleType("__main__")
    setattr(module, entry, collect)
    return module


@contextlib.contextmanager
def arguments(
    files: Sequence[str],
    bindings: Sequence[str] = (),
    script: str = "train",
    search: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Give what T5X's `train`, `evaluate` or `infer` would be called with, built: model,
    partitioner, data sets.

    Args:
      files: gin files, later ones overriding earlier ones.
      bindings: lines such as "TRAIN_STEPS = 10", which override the files.
      script: "train", "eval" or "infer".
      search: folders in which relative names are looked for, before the working folder and Python's
        packages.

    Gin's own table is filled inside the context, for what reads it when called (the trainer's
    class), and empty after it.

    Raises:
      UserError: a file is missing, a name is unknown, or a required value is not set.
    """
    import gin

    from rosetta.t5x import gin_configuration

    module = _make_stand_in(script)
    kept = sys.modules["__main__"]
    gin.clear_config()
    prefixes = gin.config._LOCATION_PREFIXES  # noqa: SLF001 (gin can add a folder, and take none away)
    before = list(prefixes)
    try:
        sys.modules["__main__"] = module
        try:
            for folder in search:
                gin.add_config_file_search_path(folder)
            gin_configuration.parse_files_and_bindings(list(files), list(bindings))
            collected = gin.get_configurable(getattr(module, ENTRY_FUNCTIONS[script]))()
        except UserError as error:
            # Gin raises a copy whose text goes on with places in gin files, on further lines.
            raise UserError(
                error.what, error.where, error.do, kind=error.kind, value=error.value
            ) from None
        except (*gin_configuration.CONFIGURATION_ERRORS, RuntimeError) as error:
            raise gin_configuration.explain_error(error) from error
        finally:
            sys.modules["__main__"] = kept
        yield collected
    finally:
        prefixes[:] = before
        gin.clear_config()
