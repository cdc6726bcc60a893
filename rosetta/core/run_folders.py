"""Folders of runs: where they read and write, on this machine or in an object store, and the
checkpoints in them.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from rosetta.core import path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, UserError
from rosetta.core.value_parsing import is_address

_NUMBERED = re.compile(r"checkpoint_(\d+)")


def check_folder_writable(folder: str) -> None:
    """UserError where a folder cannot be written to or made. Makes nothing."""
    if is_address(folder):
        path_checks.check_remote_path(folder)
    else:
        path_checks.check_local_folder_writable(folder)


def write_file(path: Any, text: str) -> None:
    """Write a file whole or not at all, see `path`. A folder of this machine need not be there
    yet.
    """
    if isinstance(path, Path):
        write_atomic(path, text, None)
    else:
        path.write_text(text)  # an object store shows an object when all of it has arrived


def make_path(name: str) -> Any:
    """Return a path that can be read and written: of this machine, or through TensorFlow in an
    object store.
    """
    if not is_address(name):
        return Path(name)
    return importlib.import_module("etils.epath").Path(name)  # object stores, through TensorFlow


def split_checkpoint_path(checkpoint: str) -> tuple[str, str]:
    """Return the folder of a checkpoint, and its name in it."""
    folder, _, name = checkpoint.rstrip("/").rpartition("/")
    return folder or ".", name


def folder_exists(checkpoint: str) -> bool:
    """Return whether there is such a folder."""
    return bool(make_path(checkpoint).is_dir())


def parse_checkpoint_step(checkpoint: str) -> int | None:
    """Return the step in a checkpoint_N's name, None for another name."""
    found = _NUMBERED.fullmatch(split_checkpoint_path(checkpoint)[1])
    return int(found[1]) if found else None


def list_checkpoint_steps(folder: str) -> list[int]:
    """Return the steps of the whole checkpoints in a folder, smallest first."""
    if not folder_exists(folder):
        return []
    return sorted(
        step
        for step in (parse_checkpoint_step(each.name) for each in make_path(folder).iterdir())
        if step is not None
    )


def check_last_step(setting: str, end: int, step: int, folder: str) -> tuple[str, ...]:
    """Check that a run ends no earlier than the checkpoint it resumes; return a line if no step is
    left.

    Args:
      setting: what says when the run ends, as NAME=VALUE.
      end: the step at which the run ends.
      step: of the newest checkpoint in the run's folder.
      folder: the name of the folder's variable.

    Raises:
      UserError: the checkpoint is past the end.
    """
    what = f"{folder} is at step {step} already"
    if end < step:
        name = setting.partition("=")[0]
        raise UserError(
            what, setting, f"give a larger {name}, or name another folder", kind=CONFLICT
        )
    return (f"{setting}: {what}: no step is left to train",) if end == step else ()
