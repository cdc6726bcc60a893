"""What Transformer Engine adds to a distribution: locked packages from the index, and the wheel of
its bindings, imported or compiled here.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.packages import debian_lock
from builder.packages.debian_resolution import Replacement
from builder.packages.transformer_engine import (
    compiler,
    header_packages,
    version_pins,
    wheel_build,
    wheel_file,
)
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin
    from builder.packages.transformer_engine.wheel_build import BuiltWheel, Plan


@dataclass(frozen=True)
class Addition:
    """`pins` come from the package index; `wheel` lies in the cache and has this `sha256`.

    `glibc` is the oldest that can load it, such as "2.32".
    """

    pins: list[Pin]
    wheel: Path
    sha256: str
    version: str
    glibc: str
    replaced: tuple[Replacement, ...] = ()  # locked headers of Python that Debian has superseded


def prepare_addition(
    context: Context,
    manifest: Manifest,
    line: str,
    accelerator: str,
    architecture: str,
    python_version: str,
    *,
    allow_current: bool = False,
) -> Addition:
    """Return what is to be installed beside a distribution's own lock; the wheel is compiled now if
    the cache has none.

    With `allow_current`, today's headers of Python are taken where Debian has superseded the locked
    ones.

    Raises:
        UserError: not for this line, accelerator or Python; no compiler for the architecture (with
          what to install, or the command to run elsewhere).
    """
    wanted = wheel_build.make_plan(manifest, line, accelerator, architecture, python_version)
    replaced: tuple[Replacement, ...] = ()
    try:
        made = find_imported_wheel(context.cache, wanted) or wheel_build.ensure_wheel(
            context.cache, wanted, offline=context.offline
        )
    except debian_lock.SupersededError:
        if not allow_current:
            raise
        current = header_packages.find_current(manifest, line, wanted.headers)
        replaced = (Replacement(current.name, wanted.headers.version, current.version),)
        log.warn(
            f"Debian has superseded {current.name} {wanted.headers.version}; this local build "
            f"compiles Transformer Engine with {current.version} "
            "and records it in lock.json"
        )
        made = wheel_build.ensure_wheel(
            context.cache,
            replace(wanted, headers=current, headers_date=""),
            offline=context.offline,
        )
    pins = version_pins.installed_pins(manifest, line, accelerator, python_version, architecture)
    return Addition(pins, made.path, made.sha256, wanted.target.version, made.glibc, replaced)


def is_built(
    context: Context,
    manifest: Manifest,
    line: str,
    accelerator: str,
    architecture: str,
    python_version: str,
) -> bool:
    """Is the wheel at hand, so that `addition` compiles nothing?"""
    wanted = wheel_build.make_plan(manifest, line, accelerator, architecture, python_version)
    if find_imported_wheel(context.cache, wanted):
        return True
    try:
        by = compiler.find_compiler(architecture)
    except UserError:
        return False
    return (
        wheel_build.find_cached_wheel(context.cache, f"te-{wheel_build.wheel_key(wanted, by)}")
        is not None
    )


def find_imported_wheel(cache: Cache, wanted: Plan) -> BuiltWheel | None:
    """Return the wheel that was brought here for this plan, if there is one: it comes before one
    compiled here.
    """
    try:
        sha256 = json.loads(_import_record_path(cache, wanted).read_text(encoding="ascii"))[
            "sha256"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wheel_build.find_cached_wheel(cache, f"te-imported-{sha256}")


def import_wheel(cache: Cache, wanted: Plan, file: Path, sha256: str) -> BuiltWheel:
    """Bring a wheel made elsewhere into the cache, to be used for this plan from now on.

    UserError where it is not what it should be.
    """
    name = wheel_file.check_wheel(file, sha256, wanted.target, wanted.inputs)
    folder = f"te-imported-{sha256}"

    def make(into: Path) -> None:
        shutil.copyfile(file, into / name)
        wheel_build.write_record(into, into / name, wanted.target, {})

    cache.ensure_folder("wheels", folder, make)
    made = wheel_build.find_cached_wheel(cache, folder)
    if made is None or made.sha256 != sha256:
        raise UserError("changed while it was read", str(file), "run again")
    write_atomic(_import_record_path(cache, wanted), json.dumps({"sha256": sha256, "file": name}))
    return made


def forget_imported_wheel(cache: Cache, wanted: Plan) -> bool:
    """Forget an imported wheel: the next build compiles its own. False where there was none."""
    note = _import_record_path(cache, wanted)
    known = note.exists()
    note.unlink(missing_ok=True)
    return known


def _import_record_path(cache: Cache, wanted: Plan) -> Path:
    return cache.path("wheels", f"te-import-{wanted.inputs}.json")


def describe_wheel(wanted: Plan, made: BuiltWheel, *, brought: bool) -> dict[str, Any]:
    """For --json."""
    target = wanted.target
    return {
        "project": version_pins.SOURCE,
        "version": target.version,
        "accelerator": target.accelerator,
        "architecture": target.architecture,
        "python": target.python,
        "wheel": made.path.name,
        "path": str(made.path),
        "sha256": made.sha256,
        "bytes": made.path.stat().st_size,
        "glibc": made.glibc,
        "imported": brought,
        "inputs": wanted.inputs,
        "effort": made.effort,
    }
