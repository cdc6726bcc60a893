"""Install the builder's tools from a lock into environments of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core.cache import Cache, stage_key
from builder.packages import lock_file, uv, wheel_record

if TYPE_CHECKING:
    from pathlib import Path

    from builder.packages.python_interpreter import Interpreter


def ensure_environment(
    cache: Cache, python: Interpreter, lock: Path, *, where: str, offline: bool
) -> Path:
    """Return an environment with the packages of a lock; make it if the cache lacks it.

    Args:
        cache: Keeps the environment, under the hash of the lock and the Python.
        python: The Python that the environment uses.
        lock: A lock of tools, with a hash for each file.
        where: What the environment is for, in error messages.
        offline: Take packages from uv's cache only.
    """

    def install(folder: Path) -> None:
        uv.run(
            "venv",
            "--quiet",
            "--relocatable",
            "--no-project",
            "--allow-existing",
            "--python",
            str(python.path),
            str(folder),
            offline=True,
            where=where,
        )
        requirements = folder / "rosetta-requirements.txt"
        requirements.write_text(
            "".join(pin.requirement_lines() for pin in lock_file.read_lock(lock)), encoding="utf-8"
        )
        uv.run(
            "pip",
            "sync",
            "--quiet",
            "--python",
            str(folder / "bin" / "python"),
            "--require-hashes",
            "--only-binary",
            ":all:",
            str(requirements),
            offline=offline,
            where=where,
        )
        for site in folder.glob("lib/python3.*/site-packages"):
            wheel_record.require_unedited(site, where)

    inputs = {"lock": lock_file.hash_lock(lock), "python": python.full, "path": str(python.path)}
    return cache.ensure_folder("env", stage_key("build-tools", inputs), install)
