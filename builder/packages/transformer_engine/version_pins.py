"""Read from the manifest and the locks which packages Transformer Engine consists of.

The module also selects the packages that its bindings are compiled against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.packages import lock_file
from rosetta.core.errors import MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest, TransformerEngine
    from builder.packages.lock_file import Pin

SOURCE = "transformer-engine-jax"
TOOLS = "locks/te-build.txt"
_CUDA = {"cuda12": "cu12", "cuda13": "cu13"}
_CUDNN_FRONTEND = "nvidia-cudnn-frontend"  # headers for every version of CUDA


def library_project(accelerator: str) -> str:
    """Return the name of the project with the compiled libraries for an accelerator."""
    return f"transformer-engine-{_CUDA[accelerator]}"


def lock_path(manifest: Manifest, line: str, accelerator: str) -> str:
    """Return the path of the lock of Transformer Engine's packages, relative to the manifest."""
    return f"{manifest.lines[line].common.rpartition('/')[0]}/te-{accelerator}.txt"


def list_accelerators(manifest: Manifest, line: str) -> list[str]:
    """Return the accelerators for which a line has Transformer Engine.

    They are those of the section transformer-engine that a distribution of the line has.
    """
    te = manifest.transformer_engine
    if te is None or line not in te.lines:
        return []
    line_accelerators = {
        accelerator
        for distribution in manifest.distributions.values()
        if distribution.line == line
        for accelerator in distribution.accelerators
    }
    return [accelerator for accelerator in te.accelerators if accelerator in line_accelerators]


def list_requirements(
    manifest: Manifest, line: str, read: Callable[[Path], Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the requirements of each lock of Transformer Engine in a line, by the lock's path.

    Args:
        manifest: The manifest.
        line: The name of the line.
        read: Reads the requirements of a *.in file.
    """
    te = manifest.transformer_engine
    if te is None or line not in te.lines:
        return {}
    requirements: dict[str, tuple[str, ...]] = {}
    for accelerator in list_accelerators(manifest, line):
        path = lock_path(manifest, line, accelerator)
        pinned = (
            f"transformer-engine=={te.version}",
            f"{library_project(accelerator)}=={te.version}",
        )
        additional = read(manifest.folder(path.removesuffix(".txt") + ".in"))
        requirements[path] = (*pinned, *additional)
    return requirements


def list_lock_paths(manifest: Manifest) -> set[str]:
    """Return the paths of all locks of Transformer Engine, relative to the manifest."""
    te = manifest.transformer_engine
    if te is None:
        return set()
    paths = {TOOLS}
    for line in te.lines:
        for accelerator in list_accelerators(manifest, line):
            paths.add(lock_path(manifest, line, accelerator))
    return paths


def require_entry(manifest: Manifest, line: str, accelerator: str) -> TransformerEngine:
    """Return the section transformer-engine of the manifest.

    Raises:
        UserError: The section is missing, or does not list the line or the accelerator.
    """
    te = manifest.transformer_engine
    if te is None:
        raise UserError(
            "has no section transformer-engine",
            "manifest",
            "add one: see docs/reference/manifest.md",
            kind=MISSING,
        )
    if line not in te.lines:
        raise UserError(
            f"Transformer Engine is not locked for the line {line!r}",
            "transformer-engine",
            f"build without Transformer Engine, or use one of: {', '.join(te.lines)}",
            kind=MISSING,
            value=line,
        )
    accelerators = list_accelerators(manifest, line)
    if accelerator not in accelerators:
        raise UserError(
            f"Transformer Engine is not for {accelerator!r}",
            "--accelerator",
            f"build without Transformer Engine, or use one of: {', '.join(accelerators)}",
            kind=UNSUPPORTED,
            value=accelerator,
        )
    return te


def installed_pins(
    manifest: Manifest, line: str, accelerator: str, python: str, architecture: str
) -> list[Pin]:
    """Return the locked packages that Transformer Engine adds to a distribution."""
    return _matching_pins(
        manifest.folder(lock_path(manifest, line, accelerator)), python, architecture
    )


def compile_time_pins(
    manifest: Manifest, line: str, accelerator: str, python: str, architecture: str
) -> list[Pin]:
    """Return the locked packages that the bindings are compiled against, sorted by name.

    Raises:
        UserError: The locks lack jaxlib, pybind11 or the frontend of cuDNN.
    """
    common = manifest.folder(manifest.lines[line].lock)
    pins = {
        pin.name: pin
        for pin in _matching_pins(common, python, architecture)
        if pin.name == "jaxlib" or pin.name.startswith("nvidia-")
    }
    pins |= {pin.name: pin for pin in _matching_pins(manifest.folder(TOOLS), python, architecture)}
    pins |= {
        pin.name: pin
        for pin in installed_pins(manifest, line, accelerator, python, architecture)
        if pin.name == _CUDNN_FRONTEND
    }
    selected = [
        pin
        for name, pin in sorted(pins.items())
        if not name.startswith("nvidia-") or name == _CUDNN_FRONTEND or _is_for(name, accelerator)
    ]
    for name in ("jaxlib", "pybind11", _CUDNN_FRONTEND):
        if name not in pins:
            raise UserError(
                f"no lock has {name} for Python {python} on {architecture}",
                str(common),
                "python build.py lock; python build.py lock --tools",
                kind=MISSING,
                value=name,
            )
    return selected


def _is_for(name: str, accelerator: str) -> bool:
    """Return whether a package of NVIDIA is for the CUDA version of an accelerator.

    The names for CUDA 12 end in -cu12. The names for CUDA 13 end in -cu13 or have no suffix.
    """
    return name.endswith("-cu12") == (accelerator == "cuda12")


def _matching_pins(lock: Path, python: str, architecture: str) -> list[Pin]:
    environment = lock_file.marker_environment(python, f"{python}.0", architecture)
    return [pin for pin in lock_file.read_lock(lock) if pin.applies_to(environment)]
