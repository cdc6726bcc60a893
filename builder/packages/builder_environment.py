"""Make the builder's own environment, `.venv`.

The uv that locks/builder.txt pins installs the packages of this lock. This module runs before the
environment exists, so it imports only the standard library and modules that do the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import platform
import re
import shutil
import signal
import stat
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import cache_folder, environment_stamp, log, package_index
from builder.packages import uv
from rosetta.core import exit_status, json_document
from rosetta.core.atomic_files import replace_file
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def make_environment(root: str, arguments: Sequence[str]) -> int:
    """Make an environment with exactly the packages of locks/builder.txt, and print any error.

    Args:
        root: The folder of the checkout.
        arguments: The words of the command line of build.py.

    Returns:
        The exit status.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _ensure_environment(Path(root), offline="--offline" in arguments)
    except UserError as error:
        if "--json" in arguments:
            print(
                json_document.render_document("", ok=False, error=error.as_json(), only_ascii=True)
            )
        log.error(str(error))
        return exit_status.USER_ERROR
    except KeyboardInterrupt:
        return exit_status.INTERRUPTED
    return exit_status.SUCCESS


def _ensure_environment(root: Path, *, offline: bool) -> None:
    lock = root / "locks" / "builder.txt"
    venv = root / ".venv"
    stamp = _compute_stamp(lock)
    if sys.prefix == str(venv):
        raise UserError(
            "build.py runs on the environment it must replace",
            str(venv),
            "leave it (deactivate) and run python3 build.py",
        )
    with _lock_checkout(root / ".venv.lock"):
        # Another process may have made the environment while this one waited.
        if not environment_stamp.is_current(str(root)):
            log.info("making the builder's own environment (.venv) ...")
            _replace_environment(venv, lock, stamp, offline=offline)


def _compute_stamp(lock: Path) -> str:
    """Return the stamp for a lock. Raises UserError if the lock cannot be read."""
    try:
        return environment_stamp.compute_stamp(str(lock))
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror or error})",
            str(lock),
            "restore it: git checkout -- locks/builder.txt",
        ) from error


def _replace_environment(venv: Path, lock: Path, stamp: str, *, offline: bool) -> None:
    """Make a new environment beside `venv`, then put it in the place of `venv`."""
    new = venv.with_name(".venv.new")
    _remove_folder(new)
    try:
        _install_packages(new, lock, offline=offline)
        (new / environment_stamp.STAMP_FILE).write_text(stamp)
        _remove_folder(venv)
        os.rename(new, venv)  # a folder, whole, under the lock of the checkout
    except OSError as error:
        raise UserError(
            f"cannot be made ({error.strerror})",
            str(venv),
            "free space or make the folder writable, then run again",
        ) from error
    finally:
        _remove_folder(new)


def _install_packages(venv: Path, lock: Path, *, offline: bool) -> None:
    """Make an environment in a new folder and install the packages of the lock into it."""
    run_uv = functools.partial(
        uv.run,
        offline=offline,
        binary=str(_ensure_uv(lock, offline=offline)),
        where="the builder's environment",
    )
    run_uv(
        "venv",
        "--quiet",
        "--relocatable",
        "--no-project",
        "--python",
        sys.executable,
        str(venv),
    )
    run_uv(
        "pip",
        "sync",
        "--quiet",
        "--python",
        str(venv / "bin" / "python"),
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--compile-bytecode",
        str(lock),
    )


def _ensure_uv(lock: Path, *, offline: bool) -> Path:
    """Return the uv program that the lock pins for this machine, from the cache or its wheel."""
    version, hashes = _read_uv_pin(lock)
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise UserError(
            "is not a Linux with glibc",
            platform.platform(),
            "use Debian, Ubuntu, Fedora or the like, or a container of one",
        )
    cache = cache_folder.prepare_folder(cache_folder.default_root())
    try:
        wheels = cache / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        wheel = package_index.fetch_file(
            "uv", version, hashes, wheels, part=f"_{platform.machine()}.", offline=offline
        )
        program = cache / "bin" / f"uv-{version}-{wheel.parent.name}"
        if not program.is_file():
            _unpack_uv(wheel, version, program)
    except OSError as error:
        raise UserError(
            f"the cache cannot be written ({error.strerror})",
            str(cache),
            "free space, or set ROSETTA_CACHE to a folder of yours",
        ) from error
    return program


def _read_uv_pin(lock: Path) -> tuple[str, frozenset[str]]:
    """Return the version of uv in the lock, and the SHA-256 of each of its files."""
    text = lock.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    pin = re.search(r"^uv==(\S+)(.*)$", text, re.MULTILINE)
    if not pin:
        raise UserError(
            "does not pin uv", str(lock), "restore it: git checkout -- locks/builder.txt"
        )
    return pin[1], frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", pin[2]))


def _unpack_uv(wheel: Path, version: str, program: Path) -> None:
    """Copy the uv program out of its wheel, as an executable file."""
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"uv-{version}.data/scripts/uv") as packed_program,
        replace_file(program, stat.S_IRWXU) as new,
        open(new, "wb") as file,
    ):
        shutil.copyfileobj(packed_program, file)


@contextlib.contextmanager
def _lock_checkout(path: Path) -> Iterator[None]:
    """Hold the lock file of the checkout, so that only one process makes the environment."""
    try:
        with open(path, "w", encoding="ascii") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UserError(
            f"the checkout cannot be written ({error.strerror})",
            str(path.parent),
            "clone it to a folder of yours",
        ) from error


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
