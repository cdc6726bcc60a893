"""Check the folders that a run writes: whether they are writable, have space, and agree on time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core import home_folder
from rosetta.core.value_parsing import is_address
from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.doctor.machine import Machine

MB, GB = 1_000_000, 1_000_000_000
# The variables that name folders a run writes, and the bytes that should be free there. A
# checkpoint of the smallest T5 has 1 GB, one of a model with 5 billion parameters has 60 GB.
WRITTEN_FOLDERS = {
    "MODEL_DIR": 20 * GB,
    "FT_DIR": 20 * GB,
    "OUTPUT_DIR": GB,
    "LOG_DIR": GB,
    "JAX_COMPILATION_CACHE_DIR": GB,
    "XDG_CACHE_HOME": GB,
}
# A run works without these folders.
CACHE_FOLDERS = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
READ_FOLDERS = ("TFDS_DATA_DIR", "T5X_DIR")
LEAST_FREE = 64_000_000  # bytes: with less, a run cannot write its logs and events
# Seconds. If the clocks differ by more, the newest file on a shared file system cannot be told by
# its time.
MOST_SKEW = 2.0


def check(machine: Machine, folders: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield the problems of the folders that the environment names, and of `folders`."""
    environment = machine.environment
    for name, wanted in WRITTEN_FOLDERS.items():
        yield from _check_folder(machine, name, environment.get(name, ""), wanted)
    for folder in folders:
        yield from _check_folder(machine, "--folder", folder, GB)
    temporary = environment.get("TMPDIR") or "/tmp"  # noqa: S108
    yield from _check_folder(machine, "TMPDIR", temporary, GB)
    if environment.get("ROSETTA_HOME"):
        yield from _check_folder(machine, "ROSETTA_HOME", environment["ROSETTA_HOME"], GB)
    elif home_folder.is_home_usable(environment):
        yield from _check_folder(machine, "HOME", environment["HOME"], GB)
    else:
        yield Finding(
            "no-home",
            NOTE,
            "cannot be written: caches go to a temporary folder, and each run makes them again",
            "HOME",
            "set ROSETTA_HOME to a permanent folder, or mount one as HOME",
        )
    for name in READ_FOLDERS:
        path = environment.get(name, "")
        if path and not is_address(path) and not os.access(path, os.R_OK | os.X_OK):
            yield Finding(
                "folder-missing",
                WARNING,
                "the folder is missing, or cannot be read",
                f"{name}={path}",
                "mount the folder, or name another",
            )


def _check_folder(machine: Machine, name: str, folder: str, wanted: int) -> Iterator[Finding]:
    """Check a folder that a run writes; it may be missing, because the run makes it.

    Args:
      machine: The machine.
      name: The variable or option that names the folder.
      folder: The folder; "" and addresses such as gs://... are not checked.
      wanted: The bytes that should be free.
    """
    if not folder or is_address(folder):
        return
    path = Path(folder).absolute()
    where = f"{name}={folder}"
    level = WARNING if name in CACHE_FOLDERS else BLOCKER
    existing = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not os.path.isdir(existing):
        yield Finding(
            "not-writable", level, f"{existing} is not a folder", where, "name another folder"
        )
        return
    yield from _check_free_space(machine, existing, where, level, wanted)
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "not-writable",
            level,
            f"{existing} cannot be written",
            where,
            "mount the folder writable, or name another",
        )
    elif not machine.quick and existing == path:
        yield from _check_write(machine, path, where, level)


def _check_free_space(
    machine: Machine, folder: Path, where: str, level: str, wanted: int
) -> Iterator[Finding]:
    """Check that the file system of a folder has room for the files of a run."""
    space = machine.query_free_space(folder)
    if space is None:
        return
    remedy = f"free some space ({wanted // GB} GB), or name another folder"
    if not space.free or not space.files:
        problem = "cannot take more files" if space.free else "is full"
        yield Finding(
            "disk-full",
            level,
            f"the file system {problem}",
            where,
            "free some space, or name another folder",
        )
    elif space.free < min(LEAST_FREE, wanted):
        what = f"only {space.free / MB:.2g} MB are free, less than {LEAST_FREE // MB} MB"
        yield Finding("disk-low", WARNING, what, where, remedy)
    elif space.free < wanted:
        what = f"only {space.free / GB:.1f} GB are free"
        yield Finding("disk-tight", WARNING, what, where, remedy)


def _check_write(machine: Machine, folder: Path, where: str, level: str) -> Iterator[Finding]:
    """Check a folder by writing a file, and compare the clock of its file server."""
    try:
        ahead = machine.probe_folder(folder)
    except OSError as error:
        yield Finding(
            "not-writable",
            level,
            f"a file cannot be written: {error.strerror or error}",
            where,
            "free some space (a quota may be used up), or name another folder",
        )
        return
    if abs(ahead) > MOST_SKEW:
        direction = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            "clock-of-files",
            WARNING,
            f"the clock of the file server is {abs(ahead):.0f} s {direction} this machine's",
            where,
            "let both follow the same time server (chronyc tracking)",
        )
