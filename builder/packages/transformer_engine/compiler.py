"""Find this machine's C++ compiler for an architecture, and identify it for cache keys."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass

from builder.core.subprocesses import output_end
from builder.packages.transformer_engine.header_packages import TRIPLETS
from rosetta.core.errors import FAILED, MISSING, UNSUPPORTED, UserError

OLDEST = 9  # the first version whose C++17 compiles XLA's headers


@dataclass(frozen=True)
class Compiler:
    """A g++ of this machine.

    Attributes:
        program: Its path.
        version: For example "12.2.0".
        machine: What it compiles for, for example "x86_64-linux-gnu".
        glibc: The version of the C library, for example "2.36".
        library: The date of its libstdc++.
    """

    program: str
    version: str
    machine: str
    glibc: str
    library: str

    @property
    def identity(self) -> dict[str, str]:
        """Everything that affects the compiled code, which the path of the program does not."""
        return {key: value for key, value in asdict(self).items() if key != "program"}


def find_compiler(architecture: str) -> Compiler:
    """Return the g++ on PATH that compiles for "amd64" or "arm64".

    Raises:
        UserError: There is no such compiler, or it is too old; the error says what to install.
    """
    triplet = TRIPLETS[architecture]
    is_native = platform.machine() == _cpu_name(triplet)
    for name in (f"{triplet}-g++", *(("g++",) if is_native else ())):
        program = shutil.which(name)
        compiler = _inspect_program(program) if program else None
        if compiler and _cpu_name(compiler.machine) == _cpu_name(triplet):
            _refuse_old_compiler(compiler)
            return compiler
    package = "g++" if is_native else f"g++-{triplet.replace('_', '-')}"
    alternative = (
        ""
        if is_native
        else f", or build the wheel on an {architecture} machine and import it with --import"
    )
    raise UserError(
        f"there is no C++ compiler for {architecture}",
        "PATH",
        f"apt-get install {package}{alternative}",
        kind=MISSING,
        value=architecture,
    )


def _cpu_name(triplet: str) -> str:
    return triplet.partition("-")[0]


def _refuse_old_compiler(compiler: Compiler) -> None:
    if int(compiler.version.partition(".")[0]) < OLDEST:
        raise UserError(
            f"is version {compiler.version}, and {OLDEST} is needed",
            compiler.program,
            "install a newer g++",
            kind=UNSUPPORTED,
            value=compiler.version,
        )


def _inspect_program(program: str) -> Compiler | None:
    """Return what a g++ says of itself; None if it is not GCC with glibc."""
    try:
        machine = subprocess.run(
            [program, "-dumpmachine"], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
        macros = subprocess.run(
            [program, "-x", "c++", "-dM", "-E", "-include", "cstddef", "-"],
            input="",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise UserError(
            f"does not work ({output_end(reason)})",
            program,
            "install g++ with its C and C++ libraries",
            kind=FAILED,
        ) from error
    macros_by_name = dict(re.findall(r"(?m)^#define (__\w+__) (.+)$", macros))
    if (
        "__clang__" in macros_by_name
        or not {"__GNUC__", "__GLIBC__", "__GLIBC_MINOR__", "__GLIBCXX__"} <= macros_by_name.keys()
    ):
        return None
    version_macros = ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")
    version = ".".join(macros_by_name[macro] for macro in version_macros)
    return Compiler(
        program,
        version,
        machine,
        f"{macros_by_name['__GLIBC__']}.{macros_by_name['__GLIBC_MINOR__']}",
        macros_by_name["__GLIBCXX__"],
    )
