"""Wheels for the few projects that have none: each built once, from the locked sdist, without
network, with locked build tools.
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
    """Return the wheel of `pin`, which the lock names by its sdist's hash; pure Python only."""
    tools = lock_file.hash_lock(build_lock)
    key = stage_key(
        "sdist",
        {
            "name": pin.name,
            "version": pin.version,
            "hashes": pin.hashes,
            "tools": tools,
            "python": python.full,
        },
    )

    def make(folder: Path) -> None:
        source = package_index.fetch_file(
            pin.name,
            pin.version,
            frozenset(pin.hashes),
            cache.path("wheels", "sdist"),
            offline=offline,
        )
        with_tools = tool_environment.ensure_environment(
            cache, python, build_lock, where="build tools", offline=offline
        )
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
            str(with_tools / "bin" / "python"),
            "--out-dir",
            str(folder),
            str(source),
        ]
        passed = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "UV_CACHE_DIR", "XDG_CACHE_HOME")
            if name in os.environ
        }  # no token, no index
        env = passed | {
            "SOURCE_DATE_EPOCH": "315532800",
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(work),
            "UV_NO_CONFIG": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=work)
        if done.returncode:
            what, *_ = uv.explain_failure(done.stderr, offline=True)
            raise UserError(
                f"its sdist does not build: {what}",
                f"{pin.name}=={pin.version}",
                "drop it by an override, or mend locks/build.in",
            )
        shutil.rmtree(work)

    folder = cache.ensure_folder("wheels", f"built-{key}", make)
    made = sorted(folder.glob("*.whl"))
    if len(made) != 1 or not made[0].name.endswith("-none-any.whl"):
        names = ", ".join(path.name for path in made) or "nothing"
        raise UserError(
            f"its sdist built {names}, not one pure-Python wheel",
            f"{pin.name}=={pin.version}",
            "drop it by an override",
        )
    return made[0]


@functools.cache
def network_isolation_prefix() -> tuple[str, ...]:
    """How to start a program without network here; nothing where the machine does not let us (uv is
    still told --offline).
    """
    if unshare := shutil.which("unshare"):
        for argv in ((unshare, "-n"), (unshare, "-rn")):
            if os.geteuid() == 0 or "r" in argv[1]:
                probe = subprocess.run([*argv, "true"], capture_output=True, check=False)
                if not probe.returncode:
                    return argv
    return ()
