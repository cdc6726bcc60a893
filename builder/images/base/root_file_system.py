"""The file systems of layers: differences, leftovers, and what a stack of layers shows."""

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

# Files that mmdebstrap leaves, and folders whose owner depends on who ran it. apt makes the folders
# again.
_BOOTSTRAP_LEFTOVER = re.compile(
    r"etc/(apt/apt\.conf\.d|dpkg/dpkg\.cfg\.d)/\d\dmmdebstrap|etc/apt/sources\.list(\.d/.*mmdebstrap.*)?|usr/bin/qemu-\w+-static|var/(cache/apt/archives|lib/apt/lists)/partial"
)
# Folders of Debian's packages, below folders whose content is dropped.
_KEPT_FOLDERS = ("run/lock", "var/log/apt")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MAXIMUM_LINKS = 40  # symbolic links that a path may follow


def is_dropped(entry: Entry) -> bool:
    """Return whether a minimal system leaves an entry out, to be the same on every machine."""
    if entry.kind == "dir" and entry.path in _KEPT_FOLDERS:
        return False
    return bool(_BOOTSTRAP_LEFTOVER.fullmatch(entry.path)) or layer_normalisation.is_dropped(entry)


def read_content(entry: Entry) -> bytes:
    """Return the content of a file."""
    if entry.data is not None:
        return entry.data
    with open(entry.source, "rb") as file:
        file.seek(entry.offset)
        return file.read(entry.size)


def find_removed(lower: Iterable[Entry], upper: Iterable[Entry]) -> list[Entry]:
    """Return whiteouts for the paths of `lower` that `upper` lacks; one for a whole folder."""
    upper_paths = {entry.path for entry in upper}
    whiteouts = []
    for entry in lower:
        folder = entry.path.rpartition("/")[0]
        if entry.path not in upper_paths and (not folder or folder in upper_paths):
            whiteouts.append(make_whiteout(entry.path))
    return whiteouts


def make_whiteout(path: str) -> Entry:
    """Return the entry that hides a path of the layers below."""
    folder, _, name = path.rpartition("/")
    whiteout = f"{folder}/{_WHITEOUT}{name}" if folder else _WHITEOUT + name
    return Entry(whiteout, "file", 0o644, data=b"")


def apply_layer(view: dict[str, Entry], entries: Iterable[Entry]) -> None:
    """Apply a layer to a view of the layers below it.

    Whiteouts hide paths, opaque folders hide what was in them, and a file in place of a folder
    hides the folder.

    Args:
        view: The entries by path; updated.
        entries: The entries of the layer.
    """
    layer = list(entries)
    for entry in layer:
        folder, _, name = entry.path.rpartition("/")
        if name == _OPAQUE:
            _hide_content(view, folder)
        elif name.startswith(_WHITEOUT):
            hidden_name = name.removeprefix(_WHITEOUT)
            _hide_path(view, f"{folder}/{hidden_name}" if folder else hidden_name)
    for entry in layer:
        if not entry.path.rpartition("/")[2].startswith(_WHITEOUT):
            if entry.kind != "dir" and entry.path in view and view[entry.path].kind == "dir":
                _hide_path(view, entry.path)
            view[entry.path] = entry


def _hide_path(view: dict[str, Entry], path: str) -> None:
    _hide_content(view, path)
    view.pop(path, None)


def _hide_content(view: dict[str, Entry], folder: str) -> None:
    inside = f"{folder}/" if folder else ""
    for path in [path for path in view if path.startswith(inside)]:
        del view[path]


def read_entries(blob: Path, wanted: Callable[[Entry], bool]) -> Iterator[Entry]:
    """Yield the entries of a layer.

    Args:
        blob: The layer's blob; it may be compressed.
        wanted: Tells for which files the entries have their content in `data`.
    """
    with open(blob, "rb") as packed, blob_compression.decompress_stream(packed) as plain:
        for entry, content in tar_file.read_tar(plain):
            if content is not None and wanted(entry):
                yield replace(entry, data=content.read())
            else:
                yield entry


def merge_layers(blobs: Iterable[Path], wanted: Callable[[Entry], bool]) -> dict[str, Entry]:
    """Return the entries that a stack of layers shows, by path.

    Args:
        blobs: The blobs of the layers, from the bottom up.
        wanted: Tells for which files the entries have their content in `data`.
    """
    view: dict[str, Entry] = {}
    for blob in blobs:
        apply_layer(view, read_entries(blob, wanted))
    return view


def resolve_path(view: Mapping[str, Entry], path: str) -> str:
    """Return the path that a path leads to, when symbolic links are followed inside the view.

    The result is "" if the path leads nowhere, or follows too many links.
    """
    parts = [part for part in path.split("/") if part]
    folder, followed = "", 0
    while parts:
        part = parts.pop(0)
        if part == ".":
            continue
        if part == "..":
            folder = folder.rpartition("/")[0]
            continue
        below = f"{folder}/{part}" if folder else part
        entry = view.get(below)
        if entry is not None and entry.kind == "link":
            followed += 1
            if followed > _MAXIMUM_LINKS:
                return ""
            parts[:0] = [target_part for target_part in entry.target.split("/") if target_part]
            folder = "" if entry.target.startswith("/") else folder
        elif entry is None and not (parts or any(name.startswith(below + "/") for name in view)):
            return ""
        else:
            folder = below
    return folder if not folder or folder in view else ""


def unpack_files(view: Mapping[str, Entry], folder: Path) -> None:
    """Write a view into a folder, without owners: folders, links, and files that have content."""
    for path, entry in sorted(view.items()):
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if entry.kind == "dir":
            os.makedirs(target, exist_ok=True)
        elif entry.kind == "link":
            link_target = entry.target
            if link_target.startswith("/"):
                inside = os.path.join(folder, link_target.lstrip("/"))
                link_target = os.path.relpath(inside, os.path.dirname(target))
            os.symlink(link_target, target)
        elif entry.kind == "hard":
            os.link(os.path.join(folder, entry.target), target)
        elif entry.kind == "file" and entry.data is not None:
            with open(target, "wb") as out:
                out.write(entry.data)
            os.chmod(target, 0o755 if entry.mode & 0o100 else 0o644)
