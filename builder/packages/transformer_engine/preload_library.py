"""Link a library without code that makes `transformer_engine.common` load cudart and NCCL.

`transformer_engine.common` loads NVIDIA's libraries from their wheels, by name, before its own. Two
of them are a problem:

- cudart: the import looks in a folder that the wheel for CUDA 12 does not have, and fails.
- NCCL: the import does not load it, and fails unless JAX has loaded NCCL before.

The import loads every file that it finds in the folders where it searches for cudart. The first of
these folders is unused, and this library is installed there. The library depends on the other two.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.core import subprocesses
from builder.packages import sdist_building
from builder.packages.transformer_engine import object_files
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.packages.transformer_engine.compiler import Compiler

# Paths below site-packages.
NCCL = "nvidia/nccl/lib/libnccl.so.2"
# By accelerator: the path of the library, and the libraries that it loads.
PLACES = {
    "cuda12": (
        "nvidia/cudart/lib/libcudart_te.so.12",
        ("nvidia/cuda_runtime/lib/libcudart.so.12", NCCL),
    ),
    "cuda13": (
        "nvidia/cu13/cudart/lib/libcudart_te.so.13",
        ("nvidia/cu13/lib/libcudart.so.13", NCCL),
    ),
}


def link_library(
    compiler: Compiler, accelerator: str, site: Path, scratch: Path
) -> tuple[str, bytes]:
    """Link the library for an accelerator.

    Args:
        compiler: The compiler that links it.
        accelerator: "cuda12" or "cuda13".
        site: The site-packages folder with cudart and NCCL.
        scratch: A folder for temporary files.

    Returns:
        The path of the library below site-packages, and its content.

    Raises:
        UserError: cudart or NCCL is missing, or the linker fails.
    """
    path, libraries = PLACES[accelerator]
    if missing := [library for library in libraries if not (site / library).is_file()]:
        raise UserError(
            "is not in the packages to compile against",
            missing[0],
            "check the locks: the package that has this file is missing, or has another layout",
            kind=MISSING,
        )
    folder = os.path.dirname(path)
    library_folders = [os.path.relpath(os.path.dirname(library), folder) for library in libraries]
    runpath = ":".join(f"$ORIGIN/{library_folder}" for library_folder in library_folders)
    out = scratch / "loader.so"
    argv = [
        *sdist_building.network_isolation_prefix(),
        compiler.program,
        "-shared",
        "-s",
        "-nostdlib",
        "-x",
        "c++",
        "/dev/null",
        "-x",
        "none",
        "-Wl,--no-as-needed",
        "-Wl,--build-id=none",
        "-Wl,--enable-new-dtags",
        "-Wl,--allow-shlib-undefined",
        f"-Wl,-soname,{os.path.basename(path)}",
        f"-Wl,-rpath,{runpath}",
        *(str(site / library) for library in libraries),
        "-o",
        str(out),
    ]
    subprocesses.run_program(
        argv,
        where=path,
        what="does not link",
        do="check the compiler",
        env=object_files.compiler_environment(scratch),
        cwd=scratch,
    )
    return path, out.read_bytes()
