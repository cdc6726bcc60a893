"""Find tasks and mixtures in SeqIO's registry."""

from __future__ import annotations

import difflib
import importlib

import gin
import seqio

from rosetta.core.errors import UNKNOWN, UserError
from rosetta.t5x import user_modules

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
        user_modules.import_user_module(module, f"TASK_MODULE={module}")
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
