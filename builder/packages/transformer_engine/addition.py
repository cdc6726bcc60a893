"""Transformer Engine as an addition to a distribution.

The addition consists of locked packages from the package index and of the wheel of the bindings,
which is imported or compiled.
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
    """What an environment with Transformer Engine installs beside the distribution's own lock.

    Attributes:
        pins: The packages from the package index.
        wheel: The wheel of the bindings, in the cache.
        sha256: The hash of the wheel.
        version: The version of Transformer Engine.
        glibc: The oldest glibc that can load the wheel, for example "2.32".
        replaced: The locked headers of Python that Debian has superseded.
    """

    pins: list[Pin]
    wheel: Path
    sha256: str
    version: str
    glibc: str
    replaced: tuple[Replacement, ...] = ()


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
    """Return the packages and the wheel to install; compile the wheel if the cache lacks it.

    Args:
        context: Has the cache, and whether the network may be used.
        manifest: The manifest with the section transformer-engine.
        line: The line of the distribution.
        accelerator: "cuda12" or "cuda13".
        architecture: "amd64" or "arm64".
        python_version: For example "3.13".
        allow_current: If Debian has superseded the locked headers of Python, use today's.

    Raises:
        UserError: Transformer Engine is not locked for the line, accelerator or Python, or there is
            no compiler for the architecture.
    """
    plan = wheel_build.make_plan(manifest, line, accelerator, architecture, python_version)
    replaced: tuple[Replacement, ...] = ()
    try:
        wheel = find_imported_wheel(context.cache, plan) or wheel_build.ensure_wheel(
            context.cache, plan, offline=context.offline
        )
    except debian_lock.SupersededError:
        if not allow_current:
            raise
        current = header_packages.find_current(manifest, line, plan.headers)
        replaced = (Replacement(current.name, plan.headers.version, current.version),)
        log.warn(
            f"Debian has superseded {current.name} {plan.headers.version}; this local build "
            f"compiles Transformer Engine with {current.version} "
            "and records it in lock.json"
        )
        wheel = wheel_build.ensure_wheel(
            context.cache,
            replace(plan, headers=current, headers_date=""),
            offline=context.offline,
        )
    pins = version_pins.installed_pins(manifest, line, accelerator, python_version, architecture)
    return Addition(pins, wheel.path, wheel.sha256, plan.target.version, wheel.glibc, replaced)


def is_built(
    context: Context,
    manifest: Manifest,
    line: str,
    accelerator: str,
    architecture: str,
    python_version: str,
) -> bool:
    """Return whether the cache has the wheel, so that `prepare_addition` compiles nothing."""
    plan = wheel_build.make_plan(manifest, line, accelerator, architecture, python_version)
    if find_imported_wheel(context.cache, plan):
        return True
    try:
        host_compiler = compiler.find_compiler(architecture)
    except UserError:
        return False
    return (
        wheel_build.find_cached_wheel(
            context.cache, f"te-{wheel_build.wheel_key(plan, host_compiler)}"
        )
        is not None
    )


def find_imported_wheel(cache: Cache, plan: Plan) -> BuiltWheel | None:
    """Return the imported wheel of a plan, or None.

    An imported wheel takes precedence over a compiled one.
    """
    try:
        sha256 = json.loads(_import_record_path(cache, plan).read_text(encoding="ascii"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wheel_build.find_cached_wheel(cache, f"te-imported-{sha256}")


def import_wheel(cache: Cache, plan: Plan, file: Path, sha256: str) -> BuiltWheel:
    """Copy a wheel that was built elsewhere into the cache and use it for a plan from now on.

    Args:
        cache: Receives the wheel.
        plan: The inputs that the wheel was built from.
        file: The wheel.
        sha256: The hash that the builder of the wheel gave.

    Raises:
        UserError: The wheel does not match the hash or the plan.
    """
    name = wheel_file.check_wheel(file, sha256, plan.target, plan.inputs)
    folder = f"te-imported-{sha256}"

    def copy_wheel(into: Path) -> None:
        shutil.copyfile(file, into / name)
        wheel_build.write_record(into, into / name, plan.target, {})

    cache.ensure_folder("wheels", folder, copy_wheel)
    wheel = wheel_build.find_cached_wheel(cache, folder)
    if wheel is None or wheel.sha256 != sha256:
        raise UserError("the file changed while it was read", str(file), "run again")
    write_atomic(_import_record_path(cache, plan), json.dumps({"sha256": sha256, "file": name}))
    return wheel


def forget_imported_wheel(cache: Cache, plan: Plan) -> bool:
    """Forget the imported wheel of a plan, so that the next build compiles one.

    Returns:
        Whether there was an imported wheel.
    """
    record = _import_record_path(cache, plan)
    existed = record.exists()
    record.unlink(missing_ok=True)
    return existed


def _import_record_path(cache: Cache, plan: Plan) -> Path:
    return cache.path("wheels", f"te-import-{plan.inputs}.json")


def describe_wheel(plan: Plan, wheel: BuiltWheel, *, is_imported: bool) -> dict[str, Any]:
    """Return the description of a wheel that `build.py wheel --json` prints."""
    target = plan.target
    return {
        "project": version_pins.SOURCE,
        "version": target.version,
        "accelerator": target.accelerator,
        "architecture": target.architecture,
        "python": target.python,
        "wheel": wheel.path.name,
        "path": str(wheel.path),
        "sha256": wheel.sha256,
        "bytes": wheel.path.stat().st_size,
        "glibc": wheel.glibc,
        "imported": is_imported,
        "inputs": plan.inputs,
        "effort": wheel.effort,
    }
