"""Nsight Systems where the user has it: it is not in our images, since it is large and bound to the
driver's age.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where NVIDIA's own packages put it, and so where a folder of the host is best mounted.
INSTALL_PATTERNS = (
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
)


def find_nsys(places: Sequence[str] = INSTALL_PATTERNS) -> Path:
    """Return the program: `$NSYS` (a program, or a folder with bin/nsys), else the one on PATH,
    else the newest in the usual places.
    """
    if asked := os.environ.get("NSYS"):
        for path in (Path(asked), Path(asked, "bin", "nsys"), Path(asked, "nsys")):
            if path.is_file() and os.access(path, os.X_OK):
                return path.absolute()
        raise UserError(
            f"{asked} is no program and holds none",
            "NSYS",
            "name nsys itself, or the folder of Nsight Systems",
            kind=MISSING,
            value=asked,
        )
    if on_path := shutil.which("nsys"):
        return Path(on_path)
    found = [
        path
        for place in places
        for path in glob.glob(place)
        if os.access(path, os.X_OK) and os.path.isfile(path)
    ]
    if found:
        return Path(max(found, key=_parse_version))
    raise UserError(
        "not found on PATH, in /opt/nvidia or in /usr/local/cuda",
        "nsys",
        (
            "mount the host's: -v /opt/nvidia/nsight-systems:/opt/nvidia/nsight-systems:ro, or "
            "set NSYS to where it is"
        ),
        kind=MISSING,
    )


def _parse_version(path: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", path)], path


def make_profile_command(
    words: Sequence[str], output: str | None, *, marked: bool = False
) -> list[str]:
    """Return the command line that profiles `words`, or only what they mark by CUDA's profiler
    calls; UserError where there is no nsys or nothing to run.
    """
    if not words:
        raise UserError(
            "no command was given",
            "rosetta profile",
            "write it after --, as in: rosetta profile -o FILE -- python -m t5x.train ...",
            kind=MISSING,
        )
    limits = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if marked else []
    return [str(find_nsys()), "profile", *limits, *(["-o", output] if output else []), *words]
