"""How this system is asked: commands, names, libcuda, file systems, packages.

The checks call these through a Machine.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class FileSystemSpace:
    """Of a file system: bytes in all, and bytes and files that an ordinary user can still have."""

    total: int
    free: int
    files: int


def run_command(argv: Sequence[str], seconds: float) -> CommandResult | None:
    """Run a command; None where there is none of that name, or it does not end in time."""
    try:
        done = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return CommandResult(done.returncode, done.stdout, done.stderr)


def resolve_host(name: str) -> list[str]:
    """Return the addresses that a host's name resolves to here; empty where it does not."""
    try:
        return sorted(
            {str(found[4][0]) for found in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)}
        )
    except (OSError, UnicodeError):
        return []


def query_driver_cuda_version() -> int | None:
    """Return the version of CUDA that libcuda implements, as 12040 for 12.4; None where it cannot
    be loaded. No GPU is touched.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        found = ctypes.c_int(0)
        return (
            found.value
            if library.cuDriverGetVersion(ctypes.byref(found)) == 0 and found.value
            else 0
        )
    except (OSError, AttributeError):
        return None


def query_free_space(path: Path) -> FileSystemSpace | None:
    """Return the room on a path's file system; None where that cannot be said, or it has no size,
    as /proc and some FUSE and network file systems.
    """
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    if not state.f_blocks:
        return None
    # Some file systems have no count of files: they say 0 of 0.
    return FileSystemSpace(
        state.f_blocks * state.f_frsize,
        state.f_bavail * state.f_frsize,
        state.f_favail if state.f_files else 1,
    )


def probe_folder(folder: Path) -> float:
    """Write a file into a folder and take it away again; return how far the file system's clock is
    ahead of ours, in seconds. OSError where it cannot be written.
    """
    before = time.time()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"rosetta doctor")
        file.flush()
        stamp = os.fstat(file.fileno()).st_mtime
    after = time.time()
    return stamp - before if stamp < before else max(stamp - after, 0.0)


def find_installed_packages(paths: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return normalised name -> versions, those that Python takes first, from the names of the
    folders that pip leaves.

    importlib.metadata would not say what is there twice.
    """
    found: dict[str, list[str]] = {}
    for place in dict.fromkeys(sys.path if paths is None else paths):
        try:
            names = sorted(os.listdir(place or "."))
        except OSError:
            continue
        for each in names:
            if match := re.fullmatch(r"([A-Za-z0-9._]+)-([^-]+)\.dist-info", each):
                found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), []).append(match[2])
    return found


def explain_refused_flags(flags: Sequence[str]) -> str:
    """Return why the XLA of this Python does not take these flags; "" where it does.

    It starts a Python with JAX on the CPU.
    """
    from rosetta.core import xla_flags
    from rosetta.core.errors import UserError

    try:
        xla_flags.check_flags_known(flags, sys.executable)
    except UserError as error:
        return error.what
    return ""
