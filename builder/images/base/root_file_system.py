"""File systems as layers have them: what one adds to another, what no layer should hold, and a view
over a stack of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.images.engines import layer_normalisation
from builder.images.oci import blob_compression, tar_file
from builder.images.oci.tar_entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

# What mmdebstrap leaves of its own, and folders whose owner goes by who ran it: apt makes them
# again.
_BOOTSTRAP_LEFTOVER = re.compile(
    r"etc/(apt/apt\.conf\.d|dpkg/dpkg\.cfg\.d)/\d\dmmdebstrap|etc/apt/sources\.list(\.d/.*mmdebstrap.*)?|usr/bin/qemu-\w+-static|var/(cache/apt/archives|lib/apt/lists)/partial"
)
_KEPT_FOLDERS = ("run/lock", "var/log/apt")  # of Debian's packages, in places that are emptied


def is_dropped(entry: Entry) -> bool:
    """Has it no place in a minimal system that is to be the same for every machine?"""
    if entry.kind == "dir" and entry.path in _KEPT_FOLDERS:
        return False
    return bool(_BOOTSTRAP_LEFTOVER.fullmatch(entry.path)) or layer_normalisation.is_dropped(entry)


def read_content(entry: Entry) -> bytes:
    """Return the bytes of a file."""
    if entry.data is not None:
        return entry.data
    with open(entry.source, "rb") as file:
        file.seek(entry.offset)
        return file.read(entry.size)


def find_removed(lower: Iterable[Entry], upper: Iterable[Entry]) -> list[Entry]:
    """Whiteouts for what `lower` has and `upper` has no more; one for a whole folder."""
    above = {entry.path for entry in upper}
    return [
        make_whiteout(entry.path)
        for entry in lower
        if entry.path not in above
        and (not (folder := entry.path.rpartition("/")[0]) or folder in above)
    ]


def make_whiteout(path: str) -> Entry:
    """Return the entry that hides `path` of the layers below."""
    folder, _, name = path.rpartition("/")
    return Entry(f"{folder}/.wh.{name}" if folder else f".wh.{name}", "file", 0o644, data=b"")


def apply_layer(below: dict[str, Entry], entries: Iterable[Entry]) -> None:
    """Lay a layer over what is there: whiteouts hide, opaque folders hide what lay in them, a file
    in place of a folder hides it.
    """
    layer = list(entries)
    for entry in layer:
        folder, _, name = entry.path.rpartition("/")
        if name == ".wh..wh..opq":
            _hide_path(below, folder, itself=False)
        elif name.startswith(".wh."):
            _hide_path(below, f"{folder}/{name[4:]}" if folder else name[4:])
    for entry in layer:
        if not entry.path.rpartition("/")[2].startswith(".wh."):
            if entry.kind != "dir" and entry.path in below and below[entry.path].kind == "dir":
                _hide_path(below, entry.path)
            below[entry.path] = entry


def _hide_path(below: dict[str, Entry], path: str, *, itself: bool = True) -> None:
    start = path + "/" if path else ""
    for name in [each for each in below if each.startswith(start)]:
        del below[name]
    if itself:
        below.pop(path, None)


def read_entries(blob: Path, wanted: Callable[[Entry], bool]) -> Iterator[Entry]:
    """Yield the entries of a layer's blob, whatever its compression; the files that are `wanted`
    with their content.
    """
    with open(blob, "rb") as packed, blob_compression.decompress_stream(packed) as plain:
        for entry, file in tar_file.read_tar(plain):
            yield replace(entry, data=file.read()) if file is not None and wanted(entry) else entry


def merge_layers(blobs: Iterable[Path], wanted: Callable[[Entry], bool]) -> dict[str, Entry]:
    """Return what a stack of layers shows, by path; the files that are `wanted` with their content,
    the others without.
    """
    shown: dict[str, Entry] = {}
    for blob in blobs:
        apply_layer(shown, read_entries(blob, wanted))
    return shown


def resolve_path(shown: Mapping[str, Entry], path: str) -> str:
    """Return the path that `path` leads to, its symbolic links followed inside the file system;
    empty where it leads nowhere.
    """
    left, here, steps = [part for part in path.split("/") if part], "", 0
    while left:
        part = left.pop(0)
        if part in (".", ".."):
            here = here.rpartition("/")[0] if part == ".." else here
            continue
        below = f"{here}/{part}" if here else part
        entry = shown.get(below)
        if entry is not None and entry.kind == "link":
            steps += 1
            if steps > 40:
                return ""
            left[:0] = [each for each in entry.target.split("/") if each]
            here = "" if entry.target.startswith("/") else here
        elif entry is None and not (left or any(name.startswith(below + "/") for name in shown)):
            return ""
        else:
            here = below
    return here if not here or here in shown else ""


def unpack_files(shown: Mapping[str, Entry], folder: Path) -> None:
    """Write what is shown, where files have content, links lead and folders are: for reading, so
    without owners.
    """
    for path, entry in sorted(shown.items()):
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if entry.kind == "dir":
            os.makedirs(target, exist_ok=True)
        elif entry.kind == "link":
            os.symlink(
                os.path.relpath(
                    os.path.join(folder, entry.target.lstrip("/")), os.path.dirname(target)
                )
                if entry.target.startswith("/")
                else entry.target,
                target,
            )
        elif entry.kind == "hard":
            os.link(os.path.join(folder, entry.target), target)
        elif entry.kind == "file" and entry.data is not None:
            with open(target, "wb") as out:
                out.write(entry.data)
            os.chmod(target, 0o755 if entry.mode & 0o100 else 0o644)
