"""What the manifest and the locks say of Transformer Engine: which packages it is, for whom, and
what its bindings are compiled against.
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
_NOT_OF_CUDA = "nvidia-cudnn-frontend"  # headers that go with either


def library_project(accelerator: str) -> str:
    """Return the project that has the compiled libraries."""
    return f"transformer-engine-{_CUDA[accelerator]}"


def lock_path(manifest: Manifest, line: str, accelerator: str) -> str:
    """Where the lock of what it adds to a distribution stands, relative to the manifest."""
    return f"{manifest.lines[line].common.rpartition('/')[0]}/te-{accelerator}.txt"


def list_requirements(
    manifest: Manifest, line: str, read: Callable[[Path], Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """For each of its locks in `line`, by path, the requirements; `read` gives those of a *.in
    file.
    """
    te = manifest.transformer_engine
    if te is None or line not in te.lines:
        return {}
    found = {}
    for accelerator in te.accelerators:
        path = lock_path(manifest, line, accelerator)
        own = (f"transformer-engine=={te.version}", f"{library_project(accelerator)}=={te.version}")
        found[path] = (*own, *read(manifest.folder(path.removesuffix(".txt") + ".in")))
    return found


def list_lock_paths(manifest: Manifest) -> set[str]:
    """All lock files it has."""
    te = manifest.transformer_engine
    return (
        {
            TOOLS,
            *(
                lock_path(manifest, line, accelerator)
                for line in te.lines
                for accelerator in te.accelerators
            ),
        }
        if te
        else set()
    )


def require_entry(manifest: Manifest, line: str, accelerator: str) -> TransformerEngine:
    """Its entry in the manifest; UserError where it is not for this line and accelerator."""
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
            f"go without, or use one of: {', '.join(te.lines)}",
            kind=MISSING,
            value=line,
        )
    if accelerator not in te.accelerators:
        raise UserError(
            f"Transformer Engine is not for {accelerator!r}",
            "--accelerator",
            f"go without, or use one of: {', '.join(te.accelerators)}",
            kind=UNSUPPORTED,
            value=accelerator,
        )
    return te


def installed_pins(
    manifest: Manifest, line: str, accelerator: str, python: str, architecture: str
) -> list[Pin]:
    """Return what it adds to a distribution from the package index, by hash."""
    return _matching_pins(
        manifest.folder(lock_path(manifest, line, accelerator)), python, architecture
    )


def compile_time_pins(
    manifest: Manifest, line: str, accelerator: str, python: str, architecture: str
) -> list[Pin]:
    """Return the packages whose headers (and libnccl) the bindings are compiled against, sorted by
    name.
    """
    common = manifest.folder(manifest.lines[line].common.removesuffix(".in") + ".txt")
    found = {
        pin.name: pin
        for pin in _matching_pins(common, python, architecture)
        if pin.name == "jaxlib" or pin.name.startswith("nvidia-")
    }
    found |= {pin.name: pin for pin in _matching_pins(manifest.folder(TOOLS), python, architecture)}
    found |= {
        pin.name: pin
        for pin in installed_pins(manifest, line, accelerator, python, architecture)
        if pin.name == _NOT_OF_CUDA
    }
    chosen_ = [
        pin
        for name, pin in sorted(found.items())
        if not name.startswith("nvidia-") or name == _NOT_OF_CUDA or _is_for(name, accelerator)
    ]
    for name in ("jaxlib", "pybind11", _NOT_OF_CUDA):
        if name not in found:
            raise UserError(
                f"no lock has {name} for Python {python} on {architecture}",
                str(common),
                "python build.py lock; python build.py lock --tools",
                kind=MISSING,
                value=name,
            )
    return chosen_


def _is_for(name: str, accelerator: str) -> bool:
    """NVIDIA's packages for CUDA 12 end in -cu12; those for 13 in -cu13 or in nothing."""
    return name.endswith("-cu12") == (accelerator == "cuda12")


def _matching_pins(lock: Path, python: str, architecture: str) -> list[Pin]:
    here = lock_file.marker_environment(python, f"{python}.0", architecture)
    return [pin for pin in lock_file.read_lock(lock) if pin.applies_to(here)]
