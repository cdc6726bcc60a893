"""A copy of the manifest and of all that it names, on which pins can move while the checkout stays
as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from builder.core.cache import remove_path
from rosetta.core.atomic_files import is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.core.manifest import Manifest

FILE = "manifest.yaml"
# What of this repository goes into an image or makes it, beside what the manifest names.
OURS = ("build.py", "builder", "rosetta", "docker", "Dockerfile.base")


def copy(manifest: Manifest, file: Path, into: Path) -> Path:
    """Copy `file`, the manifest's own, with its patches, overlays and locks into the new folder
    `into`; returns the copy of the manifest.
    """
    temporary = into.with_name(f".tmp-{into.name}")
    remove_path(temporary)
    temporary.mkdir(parents=True)
    shutil.copyfile(file, temporary / FILE)
    for folder in _folders(manifest):
        if folder.is_dir():
            shutil.copytree(
                folder, temporary / folder.relative_to(manifest.root), dirs_exist_ok=True
            )
    replace(temporary, into)
    return into / FILE


def copy_all(root: Path, into: Path) -> None:
    """Copy a whole copy, so that it can be put back."""
    temporary = into.with_name(f".tmp-{into.name}")
    remove_path(temporary)
    shutil.copytree(root, temporary)
    replace(temporary, into)


def replace(new: Path, old: Path) -> None:
    """Put the folder `new` where `old` is, or was. Only one night at a time does so."""
    remove_path(old)
    os.rename(new, old)


def digest(root: Path, names: Iterable[str] = ()) -> str:
    """Sha256 over the paths and bytes of all files below `root`, or below those of its parts, and
    which may be executed; what Python leaves behind is left out.
    """
    found = hashlib.sha256()
    for path in sorted(path for name in names or (".",) for path in _files(root / name)):
        found.update(
            f"{path.relative_to(root).as_posix()}\0{executable(path)}\0".encode(
                "utf-8", "surrogateescape"
            )
        )
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def executable(path: Path) -> bool:
    """Whether it is a file that may be executed: the one permission that git keeps, and an image
    has.
    """
    return path.is_file() and bool(path.stat().st_mode & 0o100)


def _folders(manifest: Manifest) -> list[Path]:
    named = [
        folder
        for name in manifest.sources
        for source in [manifest.source(name)]
        for folder in (source.patches, source.overlay)
        if folder
    ]
    return [*dict.fromkeys(named), manifest.folder("locks")]


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [
        path
        for path in place.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not is_temporary(path.name)
    ]
