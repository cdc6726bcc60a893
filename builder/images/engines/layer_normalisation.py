"""Make the layer of an engine's RUN step the same, whichever engine ran the step, and when.

The layer has what differs from the base in kind, owner, mode or content. Engines also list folders
that were touched and files that were copied up; the layer leaves those out.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from builder.images.oci import blob_compression, layer, tar_file
from builder.images.oci.tar_entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.engines.image_archive import ExportedImage
    from builder.images.oci.layer import Layer

# Counts up whenever the same step would give another layer than before. It is part of the keys of
# such layers.
RULES_VERSION = 1

# What tells when, where and by whom a step was run. A change there is undone: the base's entry
# stays.
_RUN_SPECIFIC = re.compile(
    r"(?:dev|proc|sys|run|tmp|var/tmp|var/run|var/log|root|var/lib/apt/lists|var/lib/dpkg/updates|var/cache/debconf/tmp\.ci)/.*"
    r"|var/cache/debconf/tmp\.ci"
    r"|etc/(?:hosts|hostname|resolv\.conf|mtab|machine-id|\.pwd\.lock|(?:passwd|group|shadow|gshadow|subuid|subgid)-)"
    r"|var/lib/dbus/machine-id|var/lib/dpkg/(?:lock.*|.*-old|triggers/Lock)|\.dockerenv|run/\.containerenv"
)
# Files of caches. Packages own some of the folders, so folders stay.
_CACHE_FILE = re.compile(r"var/cache/(?!debconf/(?:config|templates)\.dat$).*")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_KEPT_XATTRS = ("security.capability",)


def make_os_layer(cache: Cache, key: str, compression: str, exported: ExportedImage) -> Layer:
    """Return the layer "os": all that the steps of an exported image changed on its base.

    Args:
        cache: The cache.
        key: The stage key of RULES_VERSION and of all that decides the steps.
        compression: "gzip" or "zstd".
        exported: The image.
    """
    if os_layer := layer.find_layer(cache, key, "os", compression):
        return os_layer
    with find_changes(exported, cache.path("blobs", f".tmp-{key}.step")) as entries:
        return layer.write_layer(cache, key, "os", compression, lambda: entries)


@contextlib.contextmanager
def find_changes(exported: ExportedImage, scratch: Path) -> Iterator[list[Entry]]:
    """Yield the entries of the layer "os"; whiteouts are files named `.wh.*`.

    The contents are in files beside `scratch` until the context ends.
    """
    base_layers = exported.layers[: exported.base_count]
    with contextlib.ExitStack() as stack:
        upper: dict[str, Entry] = {}
        deleted: set[str] = set()
        for number, open_layer in enumerate(exported.layers[exported.base_count :]):
            spool = scratch.with_name(f"{scratch.name}-{number}")
            with _open_decompressed(open_layer) as stream:
                entries = stack.enter_context(tar_file.spool_tar(stream, spool))
            _apply_changes(upper, deleted, entries)
        base, checksums, link_targets = _scan_base(base_layers, set(upper))
        if link_targets:  # the same content under another path, which was not read yet
            base, checksums, _ = _scan_base(base_layers, set(upper) | link_targets)
        yield _compute_difference(base, checksums, upper, deleted)


@contextlib.contextmanager
def _open_decompressed(open_layer: Callable[[], IO[bytes]]) -> Iterator[IO[bytes]]:
    with open_layer() as packed, blob_compression.decompress_stream(packed) as plain:
        yield plain


def _apply_changes(upper: dict[str, Entry], deleted: set[str], entries: list[Entry]) -> None:
    """Apply one more layer of changes.

    Args:
        upper: The changed entries so far, by path; updated.
        deleted: The paths that were deleted, "PATH/" for all that was in a folder; updated.
        entries: The entries of the layer.
    """
    for entry in entries:
        hidden = _find_hidden_path(entry.path)
        if hidden is not None:
            for path in _list_hidden(upper, hidden):
                del upper[path]
            deleted.add(hidden)
    for entry in entries:
        if _is_whiteout(entry.path):
            continue
        changed = entry
        if entry.kind == "hard":  # becomes a hard link again at the end
            changed = replace(upper[entry.target], path=entry.path)
        upper[entry.path] = _drop_xattrs(changed)


def _is_whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_WHITEOUT)


def _find_hidden_path(path: str) -> str | None:
    """Return what a whiteout hides: a path, or "PATH/" for all in a folder; None for others."""
    if not _is_whiteout(path):
        return None
    folder, _, name = path.rpartition("/")
    if name == _OPAQUE:
        return f"{folder}/"
    name = name.removeprefix(_WHITEOUT)
    return f"{folder}/{name}" if folder else name


def _list_hidden(entries: Mapping[str, Entry], hidden: str) -> list[str]:
    """Return the paths that are hidden by a path, or by "PATH/" for all in a folder."""
    inside = hidden if hidden.endswith("/") else f"{hidden}/"
    return [path for path in entries if path.startswith(inside) or path == hidden]


def _drop_xattrs(entry: Entry) -> Entry:
    """Return an entry with only the extended attributes that layers keep."""
    return replace(entry, xattrs=tuple(pair for pair in entry.xattrs if pair[0] in _KEPT_XATTRS))


def _scan_base(
    layers: tuple[Callable[[], IO[bytes]], ...], wanted: set[str]
) -> tuple[dict[str, Entry], dict[str, str], set[str]]:
    """Read the layers of the base.

    Args:
        layers: The layers, from the bottom up, as functions that open them.
        wanted: The paths of files whose checksums are needed.

    Returns:
        The entries by path, the sha256 of the wanted files, and the paths of files whose checksums
        are needed, too, because wanted paths are hard links to them.
    """
    base: dict[str, Entry] = {}
    checksums: dict[str, str] = {}
    link_targets: set[str] = set()
    for open_layer in layers:
        with _open_decompressed(open_layer) as stream:
            added, hidden = _scan_layer(stream, wanted, checksums, link_targets)
        for path, entry in added.items():
            if entry.kind != "dir" and path in base and base[path].kind == "dir":
                hidden.append(f"{path}/")
        for hidden_path in hidden:
            for path in _list_hidden(base, hidden_path):
                del base[path]
        base |= added
    return base, checksums, link_targets


def _scan_layer(
    stream: IO[bytes], wanted: set[str], checksums: dict[str, str], link_targets: set[str]
) -> tuple[dict[str, Entry], list[str]]:
    """Read one layer of the base, and update `checksums` and `link_targets` of `_scan_base`.

    Returns:
        The layer's entries by path, and what its whiteouts hide.
    """
    added: dict[str, Entry] = {}
    hidden: list[str] = []
    for entry, content in tar_file.read_tar(stream):
        hidden_path = _find_hidden_path(entry.path)
        if hidden_path is not None:
            hidden.append(hidden_path)
            continue
        added[entry.path] = _drop_xattrs(entry)
        checksums.pop(entry.path, None)
        if entry.kind == "hard":
            target = added.get(entry.target, entry)
            added[entry.path] = replace(target, path=entry.path)
            if entry.target in checksums:
                checksums[entry.path] = checksums[entry.target]
            elif entry.path in wanted:
                link_targets.add(entry.target)
        elif content is not None and entry.path in wanted:
            checksums[entry.path] = _hash_stream(content)
    return added, hidden


def _hash_stream(content: IO[bytes]) -> str:
    checksum = hashlib.sha256()
    while data := content.read(1 << 20):
        checksum.update(data)
    return checksum.hexdigest()


def _hash_entry(entry: Entry) -> str:
    """Return the sha256 of a file's content."""
    if entry.data is not None:
        return hashlib.sha256(entry.data).hexdigest()
    checksum = hashlib.sha256()
    with open(entry.source, "rb") as file:
        file.seek(entry.offset)
        left = entry.size
        while left and (data := file.read(min(left, 1 << 20))):
            checksum.update(data)
            left -= len(data)
    return checksum.hexdigest()


def _is_unchanged(entry: Entry, before: Entry | None, checksums: Mapping[str, str]) -> bool:
    """Return whether an entry is what the base has at its path."""
    if before is None or _list_metadata(entry) != _list_metadata(before):
        return False
    return entry.kind != "file" or checksums.get(entry.path) == _hash_entry(entry)


def _list_metadata(entry: Entry) -> tuple[object, ...]:
    """Return all of an entry that counts in a comparison, except the content."""
    size = entry.size if entry.kind == "file" else 0
    target = entry.target if entry.kind == "link" else ""
    return entry.kind, entry.mode, entry.uid, entry.gid, size, target, entry.device, entry.xattrs


def _is_undone(entry: Entry) -> bool:
    """Return whether a change of this entry is undone, so that the base's entry stays."""
    if _RUN_SPECIFIC.fullmatch(entry.path):
        return True
    return entry.kind != "dir" and bool(_CACHE_FILE.fullmatch(entry.path))


def is_dropped(entry: Entry) -> bool:
    """Return whether a normalised layer leaves this entry out."""
    return _is_undone(entry) or (entry.path.endswith(".pyc") and _is_time_based(entry))


def _is_time_based(entry: Entry) -> bool:
    """Return whether bytecode is valid by the time of its source, which layers do not keep."""
    if entry.kind != "file":
        return False
    if entry.data is not None:
        head = entry.data[:8]
    else:
        with open(entry.source, "rb") as file:
            file.seek(entry.offset)
            head = file.read(8)
    return len(head) < 8 or head[4:8] == bytes(4)


def _compute_difference(
    base: dict[str, Entry], checksums: dict[str, str], upper: dict[str, Entry], deleted: set[str]
) -> list[Entry]:
    """Return the entries of the normalised layer, sorted by path.

    Args:
        base: The entries of the base, by path.
        checksums: The sha256 of the base's files that the step may have changed.
        upper: The entries that engines list as changed, by path.
        deleted: The deleted paths, "PATH/" for all that was in a folder.
    """
    difference = {
        path: entry
        for path, entry in upper.items()
        if not is_dropped(entry) and not _is_unchanged(entry, base.get(path), checksums)
    }
    for path in _find_deleted(base, upper, deleted):
        folder, _, name = path.rpartition("/")
        whiteout = f"{folder}/{_WHITEOUT}{name}" if folder else _WHITEOUT + name
        difference[whiteout] = Entry(whiteout, "file", 0o644, data=b"")
    for path in list(difference):
        for parent in _parent_paths(path):
            entry = upper.get(parent) or base.get(parent)
            if parent not in difference and entry is not None:
                difference[parent] = entry
    return _restore_hard_links([difference[path] for path in sorted(difference)])


def _find_deleted(
    base: Mapping[str, Entry], upper: Mapping[str, Entry], deleted: set[str]
) -> set[str]:
    """Return the paths of the base that are gone; of a folder that is gone, only the folder."""
    gone = {
        path
        for deleted_path in deleted
        for path in _list_hidden(base, deleted_path)
        if path not in upper and not _is_undone(base[path])
    }
    return {path for path in gone if not any(parent in gone for parent in _parent_paths(path))}


def _parent_paths(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def _restore_hard_links(entries: list[Entry]) -> list[Entry]:
    """Return entries where files with one content in the spool are one file, and hard links to it.

    The first path in the order of the entries is the file.
    """
    first_paths: dict[tuple[str, int], str] = {}
    restored = []
    for entry in entries:
        result = entry
        if entry.kind == "file" and entry.source and entry.size:
            first_path = first_paths.setdefault((entry.source, entry.offset), entry.path)
            if first_path != entry.path:
                result = Entry(
                    entry.path, "hard", entry.mode, target=first_path, uid=entry.uid, gid=entry.gid
                )
        restored.append(result)
    return restored
