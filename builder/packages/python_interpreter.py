"""Find the Python that an environment will stand on: one that the line's locks hold for."""

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

_ASK = (
    "import sys, platform; print('%d.%d' % sys.version_info[:2], platform.python_version(), "
    "sys.implementation.cache_tag, sep='\\n')"
)


@dataclass(frozen=True)
class Interpreter:
    """A base Python on this machine: its program, "3.11", "3.11.2" and "cpython-311"."""

    path: Path
    version: str
    full: str
    tag: str


def find_interpreter(pythons: Sequence[str], preferred: str, asked: str = "") -> Interpreter:
    """Return the Python `asked` for, else the line's own, else the line's newest that is installed.

    `asked` is a version or a path.
    """
    wanted = sorted(
        pythons,
        key=lambda version: (version == preferred, tuple(map(int, version.split(".")))),
        reverse=True,
    )
    if asked and os.sep in asked:
        found = _inspect_program(Path(asked))
        if found.version not in pythons:
            raise UserError(
                f"is Python {found.version}, for which there are no locks",
                asked,
                f"give one of: {', '.join(sorted(pythons))}",
                kind=UNSUPPORTED,
                value=found.version,
            )
        return found
    if asked:
        if asked not in pythons:
            raise UserError(
                f"there are no locks for Python {asked}",
                "--python",
                f"give one of: {', '.join(sorted(pythons))}",
                kind=UNSUPPORTED,
                value=asked,
            )
        wanted = [asked]
    for version in wanted:
        for path in _list_candidates(version):
            with contextlib.suppress(
                UserError
            ):  # a shim of a version manager that has no such Python
                if (found := _inspect_program(path)).version == version:
                    return found
    need = " or ".join(sorted(wanted))
    raise UserError(
        f"no Python {need} at hand",
        "PATH",
        (
            "install one (apt-get install python3 gives 3.11 on Debian 12 and 3.13 on Debian 13), "
            "or give --python PATH"
        ),
        kind=MISSING,
        value=need,
    )


def find_command() -> str:
    """Return the name by which a shell here finds a Python: `python`, or `python3` as on Debian."""
    return "python" if shutil.which("python") else "python3"


def builder_interpreter() -> Interpreter:
    """Return the Python that the builder itself runs on, without our environment around it."""
    return _inspect_program(Path(sys._base_executable))  # type: ignore[attr-defined]  # noqa: SLF001 - what made our .venv


def _list_candidates(version: str) -> Iterator[Path]:
    base = Path(sys._base_executable)  # type: ignore[attr-defined]  # noqa: SLF001 - what made our .venv
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version and os.path.isfile(base):
        yield base
    for folder in os.get_exec_path():
        program = Path(folder) / f"python{version}"
        # Path.is_file would raise in a folder that the user may not search.
        if os.path.isfile(program) and os.access(program, os.X_OK):
            yield program


def _inspect_program(path: Path) -> Interpreter:
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
            [str(path), "-I", "-S", "-c", _ASK],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        version_, full, tag = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = output_end(getattr(error, "stderr", "") or str(error))
        raise UserError(
            f"does not run as a Python ({reason})",
            str(path),
            "give the path of a Python program",
            kind=FAILED,
        ) from error
    return Interpreter(path.absolute(), version_, full, tag)
