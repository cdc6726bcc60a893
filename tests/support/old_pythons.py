"""The Pythons of this machine that are older than this package's own, as login nodes have them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path


@functools.cache
def find_executables() -> tuple[str, ...]:
    """Return the paths of those that start; a version manager's stand-in for a Python may not."""
    paths = [path for path in (shutil.which(f"python3.{minor}") for minor in (9, 10)) if path]
    versions = Path(os.environ.get("PYENV_ROOT", "/nowhere"), "versions")
    paths += map(str, versions.glob("3.9.*/bin/python"))
    return tuple(path for path in paths if _can_start(path))


def _can_start(path: str) -> bool:
    """Return whether it starts with as little of an environment as the tests give it."""
    env = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run([path, "--version"], env=env, capture_output=True, check=False, cwd="/")
    return not done.returncode
