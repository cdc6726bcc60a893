"""Read and write the folders of runs, and find the checkpoints in them.

A folder is on this machine, or in an object store such as gs://BUCKET/FOLDER.
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

_CHECKPOINT_NAME = re.compile(r"checkpoint_(\d+)")


def check_folder_writable(folder: str) -> None:
    """Check that a folder can be written to, or made. Nothing is made.

    Of an object store, only the address and the credentials are checked.

    Raises:
      UserError: The folder cannot be written to.
    """
    if is_address(folder):
        path_checks.check_remote_path(folder)
    else:
        path_checks.check_local_folder_writable(folder)


def write_file(path: Any, text: str) -> None:
    """Write a whole file or nothing. Missing folders of this machine are made.

    Args:
      path: A path of make_path.
      text: The content.
    """
    if isinstance(path, Path):
        write_atomic(path, text, None)
    else:
        # An object store shows an object only after all of it has arrived.
        path.write_text(text)


def make_path(name: str) -> Any:
    """Return a path object for a path of this machine or an address of an object store.

    TensorFlow reads and writes object stores.
    """
    if not is_address(name):
        return Path(name)
    return importlib.import_module("etils.epath").Path(name)


def split_checkpoint_path(checkpoint: str) -> tuple[str, str]:
    """Return the folder that a checkpoint is in, and the name of the checkpoint."""
    folder, _, name = checkpoint.rstrip("/").rpartition("/")
    return folder or ".", name


def folder_exists(folder: str) -> bool:
    """Return whether a path or an address is an existing folder."""
    return bool(make_path(folder).is_dir())


def parse_checkpoint_step(checkpoint: str) -> int | None:
    """Return N of a path that ends in checkpoint_N, or None for another path."""
    match = _CHECKPOINT_NAME.fullmatch(split_checkpoint_path(checkpoint)[1])
    return int(match[1]) if match else None


def list_checkpoint_steps(folder: str) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, smallest first.

    A checkpoint that is still being written has another name. Without the folder, the list is
    empty.
    """
    if not folder_exists(folder):
        return []
    steps = (parse_checkpoint_step(path.name) for path in make_path(folder).iterdir())
    return sorted(step for step in steps if step is not None)


def describe_missing_checkpoint(folder: str) -> str:
    """Return what is wrong with a folder in which no checkpoint was found."""
    if folder_exists(folder):
        return "the folder has no checkpoint_N"
    return "the folder does not exist"


def check_last_step(setting: str, last_step: int, step: int, variable: str) -> tuple[str, ...]:
    """Check that a run does not end before the checkpoint that it resumes from.

    Args:
      setting: The setting that decides when the run ends, as NAME=VALUE.
      last_step: The step at which the run ends.
      step: The step of the newest checkpoint in the run's folder.
      variable: The name of the folder's variable.

    Returns:
      A warning if the run has no step left to train, else nothing.

    Raises:
      UserError: The checkpoint is past the end of the run.
    """
    what = f"{variable} is at step {step} already"
    if last_step < step:
        name = setting.partition("=")[0]
        raise UserError(
            what, setting, f"give a larger {name}, or name another folder", kind=CONFLICT
        )
    return (f"{setting}: {what}: no step is left to train",) if last_step == step else ()
