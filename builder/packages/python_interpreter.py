"""Find a Python for an environment: an installed one for which the line has locks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.subprocesses import output_end
from rosetta.core.errors import FAILED, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_QUERY = (
    "import sys, platform; print('%d.%d' % sys.version_info[:2], platform.python_version(), "
    "sys.implementation.cache_tag, sep='\\n')"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python on this machine.

    Attributes:
        path: The program.
        version: For example "3.11".
        full: For example "3.11.2".
        tag: The tag of its bytecode files, for example "cpython-311".
    """

    path: Path
    version: str
    full: str
    tag: str


def find_interpreter(versions: Sequence[str], preferred: str, requested: str = "") -> Interpreter:
    """Find an installed Python for which there are locks.

    Args:
        versions: The versions that have locks, for example "3.11".
        preferred: The version that the line prefers; the other versions follow, newest first.
        requested: A version or a path from the command line.

    Raises:
        UserError: The requested Python has no locks, or no suitable Python is installed.
    """
    if requested and os.sep in requested:
        interpreter = _inspect_program(Path(requested))
        if interpreter.version not in versions:
            raise UserError(
                f"is Python {interpreter.version}, for which there are no locks",
                requested,
                f"give one of: {', '.join(sorted(versions))}",
                kind=UNSUPPORTED,
                value=interpreter.version,
            )
        return interpreter
    if requested and requested not in versions:
        raise UserError(
            f"there are no locks for Python {requested}",
            "--python",
            f"give one of: {', '.join(sorted(versions))}",
            kind=UNSUPPORTED,
            value=requested,
        )
    wanted = [requested] if requested else _order_versions(versions, preferred)
    for version in wanted:
        for path in _list_candidates(version):
            # A version manager may have a stub for a Python that is not installed.
            with contextlib.suppress(UserError):
                interpreter = _inspect_program(path)
                if interpreter.version == version:
                    return interpreter
    alternatives = " or ".join(sorted(wanted))
    raise UserError(
        f"Python {alternatives} is not installed",
        "PATH",
        (
            "install one (apt-get install python3 gives 3.11 on Debian 12 and 3.13 on Debian 13), "
            "or give --python PATH"
        ),
        kind=MISSING,
        value=alternatives,
    )


def _order_versions(versions: Sequence[str], preferred: str) -> list[str]:
    """Return the preferred version, then the other ones, newest first."""
    return sorted(
        versions,
        key=lambda version: (version == preferred, tuple(map(int, version.split(".")))),
        reverse=True,
    )


def find_command() -> str:
    """Return the command that starts Python in a shell: `python`, or `python3` as on Debian."""
    return "python" if shutil.which("python") else "python3"


def builder_interpreter() -> Interpreter:
    """Return the Python of the builder, outside its virtual environment."""
    return _inspect_program(Path(sys._base_executable))  # type: ignore[attr-defined]  # noqa: SLF001 - what made our .venv


def _list_candidates(version: str) -> Iterator[Path]:
    """Yield the programs that may be a Python of a version: the builder's own, then PATH."""
    base = Path(sys._base_executable)  # type: ignore[attr-defined]  # noqa: SLF001 - what made our .venv
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version and os.path.isfile(base):
        yield base
    for folder in os.get_exec_path():
        program = Path(folder) / f"python{version}"
        # Path.is_file raises an error in a folder that the user must not search.
        if os.path.isfile(program) and os.access(program, os.X_OK):
            yield program


def _inspect_program(path: Path) -> Interpreter:
    """Ask a program for its versions; raise UserError if it is not a working Python."""
    if path == Path(sys._base_executable) and os.path.isfile(path):  # type: ignore[attr-defined]  # noqa: SLF001
        version = sys.version_info
        return Interpreter(
            path,
            f"{version.major}.{version.minor}",
            f"{version.major}.{version.minor}.{version.micro}",
            str(sys.implementation.cache_tag),
        )
    try:
        done = subprocess.run(
            [str(path), "-I", "-S", "-c", _QUERY],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        short_version, full, tag = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = output_end(getattr(error, "stderr", "") or str(error))
        raise UserError(
            f"does not run as a Python ({reason})",
            str(path),
            "give the path of a Python program",
            kind=FAILED,
        ) from error
    return Interpreter(path.absolute(), short_version, full, tag)
