"""A copy of a manifest and of all files that it names, whose pins can move freely."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from builder.core.cache import remove_path
from rosetta.core.atomic_files import is_temporary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builder.core.manifest import Manifest

FILE = "manifest.yaml"
# The files of this repository that make an image or go into one, beside what the manifest names.
REPOSITORY_FILES = ("build.py", "builder", "rosetta", "docker", "Dockerfile.base")


def copy_manifest(manifest: Manifest, file: Path, folder: Path) -> Path:
    """Copy a manifest with its patches, overlays and locks to a folder, which is replaced.

    Args:
        manifest: The manifest.
        file: The path of the manifest.
        folder: The folder of the copy.

    Returns:
        The path of the copy of the manifest.
    """
    temporary = folder.with_name(f".tmp-{folder.name}")
    remove_path(temporary)
    temporary.mkdir(parents=True)
    shutil.copyfile(file, temporary / FILE)
    for named_folder in _named_folders(manifest):
        if named_folder.is_dir():
            relative = named_folder.relative_to(manifest.root)
            shutil.copytree(named_folder, temporary / relative, dirs_exist_ok=True)
    replace_folder(temporary, folder)
    return folder / FILE


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder. The target is replaced only when the copy is complete."""
    temporary = target.with_name(f".tmp-{target.name}")
    remove_path(temporary)
    shutil.copytree(source, temporary)
    replace_folder(temporary, target)


def replace_folder(new: Path, old: Path) -> None:
    """Rename the folder `new` to `old`, which is removed first. One process may do so at a time."""
    remove_path(old)
    os.rename(new, old)


def hash_files(root: Path, names: Iterable[str] = ()) -> str:
    """Return the SHA-256 of the paths, the bytes and the executable bits of files.

    Args:
        root: The folder in which the paths start.
        names: Files and folders below `root`. Default: all of `root`. The bytecode of Python and
            temporary files are left out.
    """
    digest = hashlib.sha256()
    for path in sorted(path for name in names or (".",) for path in _list_files(root / name)):
        relative = path.relative_to(root).as_posix()
        header = f"{relative}\0{is_executable(path)}\0"
        digest.update(header.encode("utf-8", "surrogateescape"))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def is_executable(path: Path) -> bool:
    """Return whether a path is a file that may be executed, the one permission that git keeps."""
    return path.is_file() and bool(path.stat().st_mode & 0o100)


def _named_folders(manifest: Manifest) -> list[Path]:
    """Return the folders that a manifest names."""
    folders = []
    for name in manifest.sources:
        source = manifest.source(name)
        folders += [folder for folder in (source.patches, source.overlay) if folder]
    return [*dict.fromkeys(folders), manifest.folder("locks")]


def _list_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts and not is_temporary(file.name):
            yield file
