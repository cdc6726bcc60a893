"""Evaluation of a run's gin files without the run, for `rosetta plan`, users' scripts and tests."""

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


@functools.cache  # gin cannot register a second function of the same name
def _make_stand_in(script: str) -> types.ModuleType:
    """Return a module in place of T5X's script, whose entry function returns its arguments.

    Args:
      script: "train", "eval" or "infer".
    """
    entry = ENTRY_FUNCTIONS[script]
    real = getattr(importlib.import_module(f"t5x.{script}"), entry)

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    collect.__name__ = collect.__qualname__ = entry
    collect.__module__ = "__main__"
    collect.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]  # gin checks the parameters' names
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
    """Give the arguments of T5X's `train`, `evaluate` or `infer`: the model, the partitioner, ...

    Gin's own table is filled inside the context, because some arguments read it when they are
    called, for example the class of the trainer. The table is empty afterwards.

    Args:
      files: gin files; later files override earlier ones.
      bindings: lines such as "TRAIN_STEPS = 10", which override the files.
      script: "train", "eval" or "infer".
      search: folders in which relative names of files are searched, before the working folder and
        Python's packages.

    Yields:
      The arguments by name.

    Raises:
      UserError: a file is missing, a name is unknown, or a required value is not set.
    """
    import gin

    from rosetta.t5x import gin_configuration

    module = _make_stand_in(script)
    main_module = sys.modules["__main__"]
    gin.clear_config()
    prefixes = gin.config._LOCATION_PREFIXES  # noqa: SLF001 (gin can add a folder, but not remove it)
    prefixes_before = list(prefixes)
    try:
        sys.modules["__main__"] = module
        try:
            for folder in search:
                gin.add_config_file_search_path(folder)
            gin_configuration.parse_files_and_bindings(list(files), list(bindings))
            collected = gin.get_configurable(getattr(module, ENTRY_FUNCTIONS[script]))()
        except UserError as error:
            # Gin raises a copy of the error, and adds lines with places in gin files to its text.
            raise UserError(
                error.what, error.where, error.do, kind=error.kind, value=error.value
            ) from None
        except (*gin_configuration.CONFIGURATION_ERRORS, RuntimeError) as error:
            raise gin_configuration.explain_error(error) from error
        finally:
            sys.modules["__main__"] = main_module
        yield collected
    finally:
        prefixes[:] = prefixes_before
        gin.clear_config()
