"""The parts of an environment that are made from the package rosetta alone.

They are its modules with their bytecode, its commit and its shell completion. An edit of rosetta/
changes nothing else, so this module imports nothing that knows manifests, locks or sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core import bytecode, hash_buckets
from builder.core.baked_package import find_baked_package
from builder.core.cache import stage_key
from builder.packages import completion, package_revision
from builder.packages.environment_assembly import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.packages.python_interpreter import Interpreter


def describe_files(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the sha256 of each file below a folder, and whether it is a program, by its path.

    Bytecode is left out.
    """
    return dict(sorted(_describe_entries(str(folder), "")))


def _describe_entries(folder: str, inside: str) -> Iterator[tuple[str, tuple[str, int]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _describe_entries(entry.path, f"{inside}{entry.name}/")
            elif entry.is_file():
                with open(entry.path, "rb") as file:
                    digest = hashlib.sha256(file.read()).hexdigest()
                yield inside + entry.name, (digest, entry.stat().st_mode & 0o100)


def copy_files(folder: Path, names: Iterable[str], into: Path) -> None:
    """Copy files of a folder, with the modes 0755 and 0644."""
    for name in names:
        source, target = folder / name, into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


@dataclass(frozen=True)
class Package:
    """The package rosetta: its folder, and what `describe_files` returned for it."""

    folder: Path
    files: Mapping[str, tuple[str, int]]


def read_package() -> Package:
    """Return the package rosetta that the builder bakes."""
    folder = find_baked_package()
    return Package(folder, describe_files(folder))


def package_part(package: Package, python: Interpreter) -> Part:
    """Return the part with all of the package and its bytecode, which `python` compiles."""
    return _make_part(package, list(package.files), python)


def divide_package(package: Package, python: Interpreter) -> dict[int, Part]:
    """Return the files of the package as several parts with one path, by bucket.

    The hash of its path decides the bucket of a file, so an edit of one file changes one part. The
    bytecode of a file is in the part of the file.
    """
    buckets: dict[int, list[str]] = {}
    for name in package.files:
        buckets.setdefault(hash_buckets.choose_bucket(name), []).append(name)
    return {bucket: _make_part(package, names, python) for bucket, names in sorted(buckets.items())}


def _make_part(package: Package, names: Sequence[str], python: Interpreter) -> Part:
    def write_files(into: Path) -> None:
        copy_files(package.folder, names, into)
        bytecode.compile_tree(python, into)

    files = {name: package.files[name] for name in names}
    key = stage_key("rosetta", {"files": stage_key("files", files), "python": python.full})
    return Part("opt/rosetta/rosetta", key, write_files)


def text_part(name: str, stage: str, content: str) -> Part:
    """Return the part with one text file below opt/rosetta."""

    def write_text(into: Path) -> None:
        into.write_text(content, encoding="utf-8")

    return Part(f"opt/rosetta/{name}", stage_key(stage, {"text": content}), write_text)


def revision_parts() -> list[Part]:
    """Return the part revision.json; none if the commit of rosetta is not known."""
    revision = package_revision.render_revision()
    return [text_part("revision.json", "revision", revision)] if revision else []


def completion_parts(cache: Cache, package: Package) -> list[Part]:
    """Return the part with the shell completion; none for a commit that has no completion."""
    if not completion.has_completion(package.folder):
        return []

    def write_files(into: Path) -> None:
        hashes = {name: digest for name, (digest, _) in package.files.items()}
        completion.write_files(cache, package.folder, hashes, into)

    inputs = {"files": stage_key("files", package.files), "tools": completion.hash_tools()}
    return [Part("opt/rosetta/share", stage_key("completion", inputs), write_files)]
