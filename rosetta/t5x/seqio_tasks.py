"""Find tasks and mixtures in SeqIO's registry, and import the modules that register them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys

import gin
import seqio

from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError

T5_MODULE = "t5.data.mixtures"  # registers T5's own tasks and mixtures


def find_task(name: str, module: str | None = None) -> seqio.Task | seqio.Mixture:
    """Return the task or mixture that is registered with SeqIO under a name.

    Args:
      name: the name.
      module: a Python file or a module that registers it. None if the gin files import the module,
        or if the task is one of T5's.

    Raises:
      UserError: there is no such task, or the module cannot be imported.
    """
    if module:
        _import_task_module(module)
    elif name not in _list_names():
        # Importing t5 registers configurables, which gin forbids after it has read its files.
        with gin.unlock_config():
            importlib.import_module(T5_MODULE)
    names = _list_names()
    if name in names:
        return seqio.get_mixture_or_task(name)
    near = difflib.get_close_matches(name, names, 1)
    suggestion = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        f"SeqIO has no task or mixture {name!r}",
        f"DATA=task:{name}",
        f"{suggestion}set TASK_MODULE to the Python file or module that registers the task "
        f"({module or T5_MODULE} does not)",
        kind=UNKNOWN,
        value=name,
    )


def _list_names() -> set[str]:
    """Return the names of all registered tasks and mixtures."""
    return {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}


def _import_task_module(module: str) -> None:
    """Import a module, or run a Python file as one, once in this process.

    Raises:
      UserError: the module or the file does not exist, or fails.
    """
    where = f"TASK_MODULE={module}"
    is_file = module.endswith(".py")
    name = os.path.splitext(os.path.basename(module))[0] if is_file else module
    if name in sys.modules:
        return
    if is_file and not os.path.isfile(module):
        raise UserError("the file does not exist", where, "name a Python file", kind=MISSING)
    try:
        with gin.unlock_config():
            if not is_file:
                importlib.import_module(module)
                return
            spec = importlib.util.spec_from_file_location(name, module)
            if spec is None or spec.loader is None:
                raise ImportError("not a Python file")
            loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
    except Exception as error:  # the user's code may raise anything
        sys.modules.pop(name, None)
        raise UserError(
            f"cannot be imported: {type(error).__name__}: {error}",
            where,
            "correct the code, or name a module that this Python can import (see PYTHONPATH)",
            kind=INVALID,
            value=module,
        ) from error
