"""From what an engine's RUN step left behind to a layer that is the same whichever engine ran it,
and whenever.

Taken is what differs from the base in kind, owner, mode or content; what engines list besides
(folders touched, files copied up) is not.
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

# Counts up whenever the same step would give another layer than before: part of the keys of such
# layers.
RULES_VERSION = 1

# What a step leaves that says when, where and by whom it was run. A change of it is undone: what
# the base has there stays.
_RUN_SPECIFIC = re.compile(
    r"(?:dev|proc|sys|run|tmp|var/tmp|var/run|var/log|root|var/lib/apt/lists|var/lib/dpkg/updates|var/cache/debconf/tmp\.ci)/.*"
    r"|var/cache/debconf/tmp\.ci"
    r"|etc/(?:hosts|hostname|resolv\.conf|mtab|machine-id|\.pwd\.lock|(?:passwd|group|shadow|gshadow|subuid|subgid)-)"
    r"|var/lib/dbus/machine-id|var/lib/dpkg/(?:lock.*|.*-old|triggers/Lock)|\.dockerenv|run/\.containerenv"
)
_CACHE_FILE = re.compile(
    r"var/cache/(?!debconf/(?:config|templates)\.dat$).*"
)  # its files; packages own some of its folders
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_KEPT_XATTRS = ("security.capability",)


def make_os_layer(cache: Cache, key: str, compression: str, exported: ExportedImage) -> Layer:
    """Return the layer "os": all that the steps of an exported image changed on its base.

    `key` has to hold RULES and all that decides the steps.
    """
    if known := layer.find_layer(cache, key, "os", compression):
        return known
    with find_changes(exported, cache.path("blobs", f".tmp-{key}.step")) as entries:
        return layer.write_layer(cache, key, "os", compression, lambda: entries)


@contextlib.contextmanager
def find_changes(exported: ExportedImage, scratch: Path) -> Iterator[list[Entry]]:
    """Yield the entries of that layer, whiteouts as files `.wh.*`; contents lie beside `scratch`
    while the context lasts.
    """
    with contextlib.ExitStack() as stack:
        upper: dict[str, Entry] = {}
        gone: set[str] = set()
        for number, open_ in enumerate(exported.layers[exported.base_count :]):
            spool = scratch.with_name(f"{scratch.name}-{number}")
            with _open_decompressed(open_) as stream:
                entries = stack.enter_context(tar_file.spool_tar(stream, spool))
            _apply_changes(upper, gone, entries)
        below = exported.layers[: exported.base_count]
        base, sums, linked = _scan_base(below, set(upper))
        if linked:  # the same content under another path, which was not read yet
            base, sums, _ = _scan_base(below, set(upper) | linked)
        yield _compute_difference(base, sums, upper, gone)


@contextlib.contextmanager
def _open_decompressed(open_: Callable[[], IO[bytes]]) -> Iterator[IO[bytes]]:
    with open_() as packed, blob_compression.decompress_stream(packed) as plain:
        yield plain


def _apply_changes(upper: dict[str, Entry], gone: set[str], entries: list[Entry]) -> None:
    """Put one more layer of changes over those before it: `upper` is what there is then, `gone`
    what was deleted ("PATH/" for all that was in a folder).
    """
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        if name == _OPAQUE or name.startswith(_WHITEOUT):
            path = (
                f"{folder}/"
                if name == _OPAQUE
                else "/".join(filter(None, (folder, name.removeprefix(_WHITEOUT))))
            )
            for lost in [
                each
                for each in upper
                if each.startswith(path if name == _OPAQUE else f"{path}/") or each == path
            ]:
                del upper[lost]
            gone.add(path)
    for entry in entries:
        if not entry.path.rpartition("/")[2].startswith(_WHITEOUT):
            if entry.kind == "hard":
                entry = replace(upper[entry.target], path=entry.path)  # noqa: PLW2901 - linked again at the end
            upper[entry.path] = replace(
                entry, xattrs=tuple(pair for pair in entry.xattrs if pair[0] in _KEPT_XATTRS)
            )


def _scan_base(
    layers: tuple[Callable[[], IO[bytes]], ...], wanted: set[str]
) -> tuple[dict[str, Entry], dict[str, str], set[str]]:
    """Return what the base has: its entries by path, the sha256 of those of its files that are
    `wanted`, and the files that others of these are hard links to.
    """
    found: dict[str, Entry] = {}
    sums: dict[str, str] = {}
    linked: set[str] = set()
    for open_ in layers:
        fresh: dict[str, Entry] = {}
        hidden: list[str] = []
        with _open_decompressed(open_) as stream:
            for entry, content in tar_file.read_tar(stream):
                folder, _, name = entry.path.rpartition("/")
                if name.startswith(_WHITEOUT):
                    hidden.append(
                        f"{folder}/"
                        if name == _OPAQUE
                        else "/".join(filter(None, (folder, name.removeprefix(_WHITEOUT))))
                    )
                    continue
                fresh[entry.path] = replace(
                    entry, xattrs=tuple(pair for pair in entry.xattrs if pair[0] in _KEPT_XATTRS)
                )
                sums.pop(entry.path, None)
                if entry.kind == "hard":
                    first = fresh.get(entry.target, entry)
                    fresh[entry.path] = replace(first, path=entry.path)
                    if entry.target in sums:
                        sums[entry.path] = sums[entry.target]
                    elif entry.path in wanted:
                        linked.add(entry.target)
                elif content is not None and entry.path in wanted:
                    sums[entry.path] = _hash_stream(content)
        hidden += [
            path + "/"
            for path, entry in fresh.items()
            if entry.kind != "dir" and path in found and found[path].kind == "dir"
        ]
        for path in hidden:
            for lost in [
                each
                for each in found
                if each.startswith(path if path.endswith("/") else f"{path}/") or each == path
            ]:
                del found[lost]
        found |= fresh
    return found, sums, linked


def _hash_stream(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while data := content.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()


def _hash_entry(entry: Entry) -> str:
    if entry.data is not None:
        return hashlib.sha256(entry.data).hexdigest()
    digest = hashlib.sha256()
    with open(entry.source, "rb") as file:
        file.seek(entry.offset)
        left = entry.size
        while left and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()


def _is_unchanged(entry: Entry, before: Entry | None, sums: Mapping[str, str]) -> bool:
    """Is this what the base has there?"""
    if before is None:
        return False
    if _list_metadata(entry) != _list_metadata(before):
        return False
    return entry.kind != "file" or sums.get(entry.path) == _hash_entry(entry)


def _list_metadata(entry: Entry) -> tuple[object, ...]:
    size = entry.size if entry.kind == "file" else 0
    target = entry.target if entry.kind == "link" else ""
    return entry.kind, entry.mode, entry.uid, entry.gid, size, target, entry.device, entry.xattrs


def _is_undone(entry: Entry) -> bool:
    """Is it of what stays as the base has it?"""
    return bool(_RUN_SPECIFIC.fullmatch(entry.path)) or (
        entry.kind != "dir" and bool(_CACHE_FILE.fullmatch(entry.path))
    )


def is_dropped(entry: Entry) -> bool:
    """Return whether a normalised layer leaves this entry out."""
    return _is_undone(entry) or (entry.path.endswith(".pyc") and _is_time_based(entry))


def _is_time_based(entry: Entry) -> bool:
    """Return whether this bytecode goes by the time of its source.

    Every time in a layer is another than that.
    """
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
    base: dict[str, Entry], sums: dict[str, str], upper: dict[str, Entry], gone: set[str]
) -> list[Entry]:
    kept = {
        path: entry
        for path, entry in upper.items()
        if not is_dropped(entry) and not _is_unchanged(entry, base.get(path), sums)
    }
    deleted = set()
    for path in gone:
        inside = path if path.endswith("/") else f"{path}/"
        deleted |= {
            each
            for each in base
            if (each == path or each.startswith(inside))
            and each not in upper
            and not _is_undone(base[each])
        }
    if gone:
        deleted = {
            path for path in deleted if not any(above in deleted for above in _parent_paths(path))
        }
    result = dict(kept)
    for path in deleted:
        folder, _, name = path.rpartition("/")
        mark = "/".join(filter(None, (folder, _WHITEOUT + name)))
        result[mark] = Entry(mark, "file", 0o644, data=b"")
    for path in list(result):
        for above in _parent_paths(path):
            if above not in result and (known := upper.get(above) or base.get(above)) is not None:
                result[above] = known
    return _restore_hard_links([result[path] for path in sorted(result)])


def _parent_paths(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _restore_hard_links(entries: list[Entry]) -> list[Entry]:
    """Files with one content in the spool are one file again: the first by path, and hard links to
    it.
    """
    first: dict[tuple[str, int], str] = {}
    result = []
    for entry in entries:
        if entry.kind == "file" and entry.source and entry.size:
            head = first.setdefault((entry.source, entry.offset), entry.path)
            if head != entry.path:
                entry = Entry(  # noqa: PLW2901
                    entry.path, "hard", entry.mode, target=head, uid=entry.uid, gid=entry.gid
                )
        result.append(entry)
    return result
