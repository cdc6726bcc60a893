"""Query this system: commands, host names, libcuda, file systems and Python packages.

The checks of the doctor call these functions through a Machine, which tests replace.
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
    """The result of a command that has ended.

    Attributes:
      status: The exit status.
      out: The text on stdout.
      err: The text on stderr.
    """

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class FileSystemSpace:
    """The space of a file system.

    Attributes:
      total: Bytes in all.
      free: Bytes that an ordinary user can still write.
      files: Files that an ordinary user can still make.
    """

    total: int
    free: int
    files: int


def run_command(argv: Sequence[str], seconds: float) -> CommandResult | None:
    """Run a command and return its result.

    Args:
      argv: The command.
      seconds: How long it may take.

    Returns:
      None if the program does not exist, or does not end in time.
    """
    try:
        completed = subprocess.run(
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
    return CommandResult(completed.returncode, completed.stdout, completed.stderr)


def resolve_host(name: str) -> list[str]:
    """Return the addresses of a host name; empty if the name cannot be resolved."""
    try:
        entries = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return []
    return sorted({str(entry[4][0]) for entry in entries})


def query_driver_cuda_version() -> int | None:
    """Return the version of CUDA that libcuda implements, such as 12040 for 12.4.

    No GPU is touched. None means that libcuda cannot be loaded, 0 that it does not answer.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        status = library.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value if status == 0 else 0


def query_free_space(path: Path) -> FileSystemSpace | None:
    """Return the space of the file system that a path is on.

    None means that the system does not report it, or that the file system has no size: /proc, and
    some FUSE and network file systems.
    """
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    if not state.f_blocks:
        return None
    # Some file systems do not count files, and report 0 of 0.
    return FileSystemSpace(
        state.f_blocks * state.f_frsize,
        state.f_bavail * state.f_frsize,
        state.f_favail if state.f_files else 1,
    )


def probe_folder(folder: Path) -> float:
    """Write a file into a folder, delete it, and compare the clocks.

    Returns:
      How many seconds the clock of the file system is ahead of this machine's.

    Raises:
      OSError: The folder cannot be written to.
    """
    before = time.time()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"rosetta doctor")
        file.flush()
        written_at = os.fstat(file.fileno()).st_mtime
    after = time.time()
    return written_at - before if written_at < before else max(written_at - after, 0.0)


def find_installed_packages(folders: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return normalised name -> versions of the packages in folders.

    The first version is the one that Python imports. The names of pip's .dist-info folders are
    read, because importlib.metadata does not show a package that is installed twice.

    Args:
      folders: The folders to search, in this order; None for sys.path.
    """
    versions: dict[str, list[str]] = {}
    for folder in dict.fromkeys(sys.path if folders is None else folders):
        try:
            entries = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for entry in entries:
            if match := re.fullmatch(r"([A-Za-z0-9._]+)-([^-]+)\.dist-info", entry):
                name = re.sub(r"[-_.]+", "-", match[1]).lower()
                versions.setdefault(name, []).append(match[2])
    return versions


def explain_refused_flags(flags: Sequence[str]) -> str:
    """Return why the XLA of this Python does not take these flags; "" if it takes them.

    The function starts a Python with JAX on the CPU.
    """
    from rosetta.core import xla_flags
    from rosetta.core.errors import UserError

    try:
        xla_flags.check_flags_known(flags, sys.executable)
    except UserError as error:
        return error.what
    return ""
