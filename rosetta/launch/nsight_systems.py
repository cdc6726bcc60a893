"""Find Nsight Systems on this machine, and profile a command with it.

The images do not contain it, since it is large and has to match the driver.
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
    """Return the path of nsys.

    NSYS names it, or a folder with bin/nsys. Without NSYS, it is the one on PATH, or the newest one
    in the usual places.

    Raises:
      UserError: there is no nsys.
    """
    if setting := os.environ.get("NSYS"):
        for path in (Path(setting), Path(setting, "bin", "nsys"), Path(setting, "nsys")):
            if path.is_file() and os.access(path, os.X_OK):
                return path.absolute()
        raise UserError(
            f"{setting} is not a program, and not a folder with one",
            "NSYS",
            "name nsys itself, or the folder of Nsight Systems",
            kind=MISSING,
            value=setting,
        )
    if on_path := shutil.which("nsys"):
        return Path(on_path)
    installed = [
        path
        for place in places
        for path in glob.glob(place)
        if os.access(path, os.X_OK) and os.path.isfile(path)
    ]
    if installed:
        return Path(max(installed, key=_parse_version))
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
    """Return the numbers in a path, to compare versions, and the path."""
    return [int(number) for number in re.findall(r"\d+", path)], path


def make_profile_command(
    words: Sequence[str], output: str | None, *, marked: bool = False
) -> list[str]:
    """Return the command line that profiles a command.

    Args:
      words: the command.
      output: the file of the report; None leaves it to nsys.
      marked: profile only what the command marks by calls of CUDA's profiler.

    Raises:
      UserError: there is no nsys, or no command.
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
