"""Import the Python code of a user: a module by its name, or a file by its path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import gin

from rosetta.core.errors import INVALID, MISSING, UserError


def import_user_module(module: str, where: str) -> Any:
    """Import a module, or run a Python file as one, once in this process, and return it.

    Args:
      module: the name of a module, or the path of a Python file.
      where: the setting that names it, for errors, such as "TASK_MODULE=tasks.py".

    Raises:
      UserError: the module or the file does not exist, or fails.
    """
    is_file = module.endswith(".py")
    name = os.path.splitext(os.path.basename(module))[0] if is_file else module
    if name in sys.modules:
        return sys.modules[name]
    if is_file and not os.path.isfile(module):
        raise UserError("the file does not exist", where, "name a Python file", kind=MISSING)
    try:
        # Gin forbids to register configurables after it has read its files.
        with gin.unlock_config():
            if not is_file:
                return importlib.import_module(module)
            spec = importlib.util.spec_from_file_location(name, module)
            if spec is None or spec.loader is None:
                raise ImportError("not a Python file")
            loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            return loaded
    except Exception as error:  # the user's code may raise anything
        sys.modules.pop(name, None)
        raise UserError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where,
            "correct the code, or name a module that this Python can import (see PYTHONPATH)",
            kind=INVALID,
            value=module,
        ) from error
