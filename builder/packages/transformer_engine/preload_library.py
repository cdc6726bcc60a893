"""A library without code, whose one purpose is to be loaded: it brings in two that Transformer
Engine needs and does not find by itself.

`transformer_engine.common` loads NVIDIA's libraries from their wheels by name before its own. Among
them is cudart, which it looks for in a folder that the wheel for CUDA 12 does not have, so that its
import fails; NCCL is not among them, so that its import fails unless JAX has loaded NCCL before. In
every place that it searches for cudart it loads whatever it finds there; the first such place is
free, and this library is put there.
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

# By accelerator, below site-packages: where the library goes, and what it brings in.
NCCL = "nvidia/nccl/lib/libnccl.so.2"
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
    """Its place below site-packages and its content; `site` holds the libraries it is linked with,
    `scratch` is a folder to work in.
    """
    place, libraries = PLACES[accelerator]
    if missing := [each for each in libraries if not (site / each).is_file()]:
        raise UserError(
            "is not in what it is compiled against",
            missing[0],
            "check the locks: the package that brings it is missing, or is laid out otherwise",
            kind=MISSING,
        )
    start = os.path.dirname(place)
    runpath = ":".join(
        f"$ORIGIN/{os.path.relpath(os.path.dirname(each), start)}" for each in libraries
    )
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
        f"-Wl,-soname,{os.path.basename(place)}",
        f"-Wl,-rpath,{runpath}",
        *(str(site / each) for each in libraries),
        "-o",
        str(out),
    ]
    subprocesses.run_program(
        argv,
        where=place,
        what="does not link",
        do="check the compiler",
        env=object_files.compiler_environment(scratch),
        cwd=scratch,
    )
    return place, out.read_bytes()
