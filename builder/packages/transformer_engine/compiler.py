"""The machine's C++ compiler for one architecture, and what of it decides the code it makes."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass

from builder.core.subprocesses import output_end
from builder.packages.transformer_engine.header_packages import TRIPLETS
from rosetta.core.errors import FAILED, MISSING, UNSUPPORTED, UserError

OLDEST = 9  # the first whose C++17 takes XLA's headers


@dataclass(frozen=True)
class Compiler:
    """One g++.

    `version` "12.2.0", `machine` "x86_64-linux-gnu", `glibc` "2.36", `library` the date of its
    libstdc++.
    """

    program: str
    version: str
    machine: str
    glibc: str
    library: str

    @property
    def identity(self) -> dict[str, str]:
        """What decides the code: everything but the program's place."""
        return {key: value for key, value in asdict(self).items() if key != "program"}


def find_compiler(architecture: str) -> Compiler:
    """Return the compiler for "amd64" or "arm64" that is on PATH.

    UserError with what to install where there is none.
    """
    triplet = TRIPLETS[architecture]
    native = platform.machine() == triplet.partition("-")[0]
    for name in (f"{triplet}-g++", *(("g++",) if native else ())):
        if (
            (program := shutil.which(name))
            and (found := _inspect_program(program))
            and found.machine.partition("-")[0] == triplet.partition("-")[0]
        ):
            if int(found.version.partition(".")[0]) < OLDEST:
                raise UserError(
                    f"is version {found.version}, and {OLDEST} is needed",
                    program,
                    "install a newer g++",
                    kind=UNSUPPORTED,
                    value=found.version,
                )
            return found
    package = "g++" if native else f"g++-{triplet.replace('_', '-')}"
    elsewhere = (
        ""
        if native
        else f", or make the wheel on an {architecture} machine and bring it here by --import"
    )
    raise UserError(
        f"no C++ compiler for {architecture} is here",
        "PATH",
        f"apt-get install {package}{elsewhere}",
        kind=MISSING,
        value=architecture,
    )


def _inspect_program(program: str) -> Compiler | None:
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
    known = dict(re.findall(r"(?m)^#define (__\w+__) (.+)$", macros))
    if (
        "__clang__" in known
        or not {"__GNUC__", "__GLIBC__", "__GLIBC_MINOR__", "__GLIBCXX__"} <= known.keys()
    ):
        return None  # another compiler by that name, or another C library
    version = f"{known['__GNUC__']}.{known['__GNUC_MINOR__']}.{known['__GNUC_PATCHLEVEL__']}"
    return Compiler(
        program,
        version,
        machine,
        f"{known['__GLIBC__']}.{known['__GLIBC_MINOR__']}",
        known["__GLIBCXX__"],
    )
