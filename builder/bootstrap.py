"""The builder's own environment: `.venv`, made from locks/builder.txt by the uv that this lock
pins. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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

from builder.core import cache_folder, log, package_index
from builder.packages import uv
from rosetta.core import exit_status, json_document
from rosetta.core.atomic_files import replace_file
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A package missing from .venv and an early Ctrl-C get a sentence too.
_RUN = f"""import sys
sys.path.insert(0, sys.argv.pop(1))
try:
    from builder.cli import main
    status = main(sys.argv[1:])
except ImportError as error:
    status = f"rosetta: the builder's own environment is damaged ({{error}}); \
delete the folder .venv and run again"
except KeyboardInterrupt:
    status = {exit_status.INTERRUPTED}
if isinstance(status, str):
    print(status, file=sys.stderr)
sys.exit({exit_status.USER} if isinstance(status, str) else status)
"""


def hand_over(root: str, arguments: Sequence[str]) -> int:
    """Make the environment if it is not there or not current, then become the builder in it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        python = _ensure(Path(root), offline="--offline" in arguments)
    except UserError as error:
        if "--json" in arguments:
            print(json_document.render("", ok=False, error=error.as_json(), only_ascii=True))
        log.error(str(error))
        return exit_status.USER
    except KeyboardInterrupt:
        return exit_status.INTERRUPTED
    return os.execv(python, [str(python), "-I", "-c", _RUN, root, *arguments])  # noqa: S606 - it replaces this process


def _ensure(root: Path, *, offline: bool) -> Path:
    """Return the Python of an environment that holds exactly what locks/builder.txt says."""
    lock = root / "locks" / "builder.txt"
    venv = root / ".venv"
    python, stamp = venv / "bin" / "python", venv / "rosetta-stamp"
    base = f"{sys.version_info.major}.{sys.version_info.minor} {os.path.realpath(sys.executable)}"
    try:
        wanted = hashlib.sha256(lock.read_bytes() + base.encode()).hexdigest()
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror or error})",
            str(lock),
            "restore it: git checkout -- locks/builder.txt",
        ) from error
    if venv.is_symlink() and python.exists():
        return python  # another checkout's, as in a worktree of git: that one keeps it current
    if _read(stamp) == wanted and python.exists():
        return python
    if sys.prefix == str(venv):
        raise UserError(
            "build.py runs on the environment it must replace",
            str(venv),
            "leave it (deactivate) and run python3 build.py",
        )
    with _locked(root / ".venv.lock"):
        if _read(stamp) == wanted and python.exists():
            return python
        log.info("making the builder's own environment (.venv) ...")
        new = root / ".venv.new"
        _remove(new)
        try:
            uv_program = _uv(lock, offline=offline)
            run = {
                "offline": offline,
                "binary": str(uv_program),
                "where": "the builder's environment",
            }
            uv.run(
                "venv",
                "--quiet",
                "--relocatable",
                "--no-project",
                "--python",
                sys.executable,
                str(new),
                **run,  # type: ignore[arg-type]
            )
            target = ("--python", str(new / "bin" / "python"))
            uv.run(
                "pip",
                "sync",
                "--quiet",
                *target,
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--compile-bytecode",
                str(lock),
                **run,  # type: ignore[arg-type]
            )
            (new / "rosetta-stamp").write_text(wanted)
            _remove(venv)
            os.rename(new, venv)  # a folder, whole, under the lock of the cache
        except OSError as error:
            raise UserError(
                f"cannot be made ({error.strerror})",
                str(venv),
                "free space or make the folder writable, then run again",
            ) from error
        finally:
            _remove(new)
    return python


def _uv(lock: Path, *, offline: bool) -> Path:
    """Return the uv program that the lock pins for this machine, unpacked from its wheel."""
    text = lock.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    found = re.search(r"^uv==(\S+)(.*)$", text, re.MULTILINE)
    if not found:
        raise UserError("names no uv", str(lock), "restore it: git checkout -- locks/builder.txt")
    hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", found[2]))
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        raise UserError(
            "is no Linux with glibc",
            platform.platform(),
            "use Debian, Ubuntu, Fedora or the like, or a container of one",
        )
    cache = cache_folder.prepare_folder(cache_folder.default_root())
    try:
        wheels = cache / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        wheel = package_index.fetch_file(
            "uv", found[1], hashes, wheels, part=f"_{platform.machine()}.", offline=offline
        )
        program = cache / "bin" / f"uv-{found[1]}-{wheel.parent.name}"
        if program.is_file():
            return program
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"uv-{found[1]}.data/scripts/uv") as source,
            replace_file(program, stat.S_IRWXU) as new,
            open(new, "wb") as out,
        ):
            shutil.copyfileobj(source, out)
    except OSError as error:
        raise UserError(
            f"the cache cannot be written ({error.strerror})",
            str(cache),
            "free space, or set ROSETTA_CACHE to a folder of yours",
        ) from error
    return program


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return ""


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
