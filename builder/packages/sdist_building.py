"""Build wheels for the few packages that publish only an sdist.

Each wheel is built once from the locked sdist, with locked build tools and without network.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from builder.core import package_index
from builder.core.cache import Cache, stage_key
from builder.packages import lock_file, tool_environment, uv
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.packages.python_interpreter import Interpreter


def ensure_wheel(
    cache: Cache, pin: lock_file.Pin, python: Interpreter, build_lock: Path, *, offline: bool
) -> Path:
    """Return the wheel of a package that publishes only an sdist; build it if the cache lacks it.

    Args:
        cache: Keeps the wheel.
        pin: The locked package, with the hash of its sdist.
        python: The Python that builds the wheel.
        build_lock: The lock of the build tools.
        offline: Fetch nothing from the network.

    Raises:
        UserError: The sdist does not build, or the result is not one pure Python wheel.
    """
    key = stage_key(
        "sdist",
        {
            "name": pin.name,
            "version": pin.version,
            "hashes": pin.hashes,
            "tools": lock_file.hash_lock(build_lock),
            "python": python.full,
        },
    )

    def build(folder: Path) -> None:
        sdist = package_index.fetch_file(
            pin.name,
            pin.version,
            frozenset(pin.hashes),
            cache.path("wheels", "sdist"),
            offline=offline,
        )
        tools = tool_environment.ensure_environment(
            cache, python, build_lock, where="build tools", offline=offline
        )
        _build_wheel(f"{pin.name}=={pin.version}", sdist, tools, folder)

    folder = cache.ensure_folder("wheels", f"built-{key}", build)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1 or not wheels[0].name.endswith("-none-any.whl"):
        names = ", ".join(path.name for path in wheels) or "nothing"
        raise UserError(
            f"its sdist built {names}, not one pure-Python wheel",
            f"{pin.name}=={pin.version}",
            "drop it by an override",
        )
    return wheels[0]


def _build_wheel(package: str, sdist: Path, tools: Path, folder: Path) -> None:
    """Build an sdist into `folder`, with the environment `tools` and without network."""
    work = folder / "work"
    work.mkdir()
    argv = [
        *network_isolation_prefix(),
        uv.find_program(),
        "build",
        "--wheel",
        "--offline",
        "--no-build-isolation",
        "--no-index",
        "--python",
        str(tools / "bin" / "python"),
        "--out-dir",
        str(folder),
        str(sdist),
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=_build_variables(work), cwd=work
    )
    if done.returncode:
        reason, *_ = uv.explain_failure(done.stderr, offline=True)
        raise UserError(
            f"its sdist does not build: {reason}",
            package,
            "drop it by an override, or add what it needs to locks/build.in",
        )
    shutil.rmtree(work)


def _build_variables(work: Path) -> dict[str, str]:
    """Return the environment variables of a build: no token and no index settings."""
    names = ("PATH", "HOME", "UV_CACHE_DIR", "XDG_CACHE_HOME")
    passed = {name: os.environ[name] for name in names if name in os.environ}
    return passed | {
        "SOURCE_DATE_EPOCH": "315532800",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(work),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }


@functools.cache
def network_isolation_prefix() -> tuple[str, ...]:
    """Return the command that starts a program without network.

    The tuple is empty if this machine does not allow that. uv gets --offline in any case.
    """
    unshare = shutil.which("unshare")
    if not unshare:
        return ()
    for argv in ((unshare, "-n"), (unshare, "-rn")):
        if os.geteuid() == 0 or "r" in argv[1]:
            probe = subprocess.run([*argv, "true"], capture_output=True, check=False)
            if not probe.returncode:
                return argv
    return ()
