"""The folders that a run writes: are they there, writable, with room, and on a clock like ours?"""

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
# Variable of the run -> bytes that it should find free. A checkpoint of the smallest T5 has 1 GB,
# one of a 5B model 60.
WRITTEN_FOLDERS = {
    "MODEL_DIR": 20 * GB,
    "FT_DIR": 20 * GB,
    "OUTPUT_DIR": GB,
    "LOG_DIR": GB,
    "JAX_COMPILATION_CACHE_DIR": GB,
    "XDG_CACHE_HOME": GB,
}
CACHE_FOLDERS = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", "HOME")  # a run goes on without
READ_FOLDERS = ("TFDS_DATA_DIR", "T5X_DIR")
LEAST_FREE = 64_000_000  # bytes: with less, logs and events stop
MOST_SKEW = 2.0  # seconds: more, and what is newest on a shared file system cannot be told


def check(machine: Machine, folders: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield what is wrong with the folders of the environment, and with these."""
    environment = machine.environment
    for name, least in WRITTEN_FOLDERS.items():
        yield from _check_folder(machine, name, environment.get(name, ""), least)
    for given in folders:
        yield from _check_folder(machine, "--folder", given, GB)
    yield from _check_folder(machine, "TMPDIR", environment.get("TMPDIR") or "/tmp", GB)  # noqa: S108
    if environment.get("ROSETTA_HOME"):
        yield from _check_folder(machine, "ROSETTA_HOME", environment["ROSETTA_HOME"], GB)
    elif home_folder.is_home_usable(environment):
        yield from _check_folder(machine, "HOME", environment["HOME"], GB)
    else:
        do = "set ROSETTA_HOME to a folder that stays, or mount one as HOME"
        yield Finding(
            "no-home",
            NOTE,
            "it cannot be written: caches go to a temporary folder and are made anew each time",
            "HOME",
            do,
        )
    for name in READ_FOLDERS:
        path = environment.get(name, "")
        if path and not is_address(path) and not os.access(path, os.R_OK | os.X_OK):
            yield Finding(
                "folder-missing",
                WARNING,
                "there is no such folder, or it cannot be read",
                f"{name}={path}",
                "mount it, or name another",
            )


def _check_folder(machine: Machine, name: str, given: str, least: int) -> Iterator[Finding]:
    if not given or is_address(given):
        return
    path, where, level = (
        Path(given).absolute(),
        f"{name}={given}",
        WARNING if name in CACHE_FOLDERS else BLOCKER,
    )
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not os.path.isdir(there):
        yield Finding("not-writable", level, f"{there} is no folder", where, "name another folder")
        return
    found = machine.room(there)
    if found is not None and (not found.free or not found.files):
        what = "its file system can take no more files" if found.free else "its file system is full"
        yield Finding("disk-full", level, what, where, "make room, or name another folder")
    elif found is not None and found.free < min(LEAST_FREE, least):
        what = f"only {found.free / MB:.2g} MB are free, less than {LEAST_FREE // MB} MB"
        yield Finding(
            "disk-low",
            WARNING,
            what,
            where,
            f"make room ({least // GB} GB), or name another folder",
        )
    elif found is not None and found.free < least:
        yield Finding(
            "disk-tight",
            WARNING,
            f"{found.free / GB:.1f} GB are free",
            where,
            f"make room ({least // GB} GB), or name another folder",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "not-writable",
            level,
            f"{there} cannot be written",
            where,
            "mount it writable, or name another folder",
        )
    elif not machine.quick and there == path:
        yield from _check_write(machine, path, where, level)


def _check_write(machine: Machine, path: Path, where: str, level: str) -> Iterator[Finding]:
    try:
        ahead = machine.written(path)
    except OSError as error:
        yield Finding(
            "not-writable",
            level,
            f"a file cannot be written: {error.strerror or error}",
            where,
            "make room (quotas count too), or name another folder",
        )
        return
    if abs(ahead) > MOST_SKEW:
        what = (
            f"its file server's clock is {abs(ahead):.0f} s "
            f"{'ahead of' if ahead > 0 else 'behind'} this machine's"
        )
        yield Finding(
            "clock-of-files",
            WARNING,
            what,
            where,
            "let both follow the same time server (chronyc tracking)",
        )
