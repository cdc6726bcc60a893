"""Layers of images: written once into the cache as blobs, and found by the key of their inputs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING

from builder.images.oci import blob_compression, tar_file
from builder.images.oci.tar_entry import EPOCH, Entry
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import CONFLICT, INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from builder.core.cache import Cache


@dataclass(frozen=True)
class Layer:
    """One layer. Digests are "sha256:<hex>", sizes are in bytes."""

    name: str  # "base", "os", or one of layer_assignment.LAYERS
    diff_id: str  # of the uncompressed tar
    digest: str  # of the blob
    size: int  # of the blob
    unpacked: int  # of the uncompressed tar
    media_type: str
    key: str  # stage_key of its inputs


def blob_path(cache: Cache, digest: str) -> Path:
    """Return the path of a blob in the cache."""
    return cache.path("blobs") / "sha256" / digest.removeprefix("sha256:")


def _record_path(cache: Cache, key: str, compression: str) -> Path:
    return cache.path("layers", f"{key}.{compression}.json")


def find_layer(cache: Cache, key: str, name: str, compression: str) -> Layer | None:
    """Return a layer that the cache has, and note that it was used.

    The blob is whole if its size and its time are those that the builder gave it.

    Args:
        cache: The cache.
        key: The stage key of the layer's inputs.
        name: The name that the returned layer has.
        compression: "gzip" or "zstd".

    Returns:
        The layer, or None if the cache lacks it or its blob is not whole.
    """
    record = _record_path(cache, key, compression)
    try:
        values = json.loads(record.read_text(encoding="ascii"))
        if values.pop("format") != blob_compression.FORMAT:
            return None
        layer = Layer(**values)
        state = os.stat(blob_path(cache, layer.digest))
        if state.st_size != layer.size or state.st_mtime != EPOCH:
            return None
        os.utime(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return replace(layer, name=name)


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries sorted by path, with the missing folders above them (mode 0755).

    Raises:
        UserError: A path is not valid, or is there twice and is not the same folder both times.
    """
    by_path: dict[str, Entry] = {}
    for entry in entries:
        path = entry.path
        if not _is_layer_path(path):
            raise UserError(
                f"{path!r} is not a valid path in a layer", entry.source, kind=INVALID, value=path
            )
        if path in by_path and not (entry.kind == "dir" and by_path[path] == entry):
            raise UserError(
                f"two entries of a layer have the path {path!r}",
                entry.source,
                kind=CONFLICT,
                value=path,
            )
        by_path[path] = entry
    for path in list(by_path):
        parent = path.rpartition("/")[0]
        while parent and parent not in by_path:
            by_path[parent] = Entry(parent, "dir", 0o755)
            parent = parent.rpartition("/")[0]
    return [by_path[path] for path in sorted(by_path)]


def _is_layer_path(path: str) -> bool:
    return bool(
        path
        and path[0] != "/"
        and path[-1] != "/"
        and "//" not in path
        and "\0" not in path
        and ".." not in path.split("/")
    )


def write_layer(
    cache: Cache, key: str, name: str, compression: str, entries: Callable[[], Iterable[Entry]]
) -> Layer:
    """Return the layer of a key; write it if the cache lacks it.

    Args:
        cache: The cache.
        key: The stage key of the layer's inputs.
        name: The name that the returned layer has.
        compression: "gzip" or "zstd".
        entries: Makes the content; called only if the cache lacks the layer.
    """
    return _ensure_layer(
        cache,
        key,
        name,
        compression,
        lambda sink: tar_file.write_tar(sort_entries(entries()), sink),
    )


def rewrite_layer(
    cache: Cache,
    key: str,
    name: str,
    compression: str,
    open_tar: Callable[[], IO[bytes]],
    change: Callable[[list[Entry]], Iterable[Entry]] | None = None,
) -> Layer:
    """Return a layer with the content of a tar that another program wrote.

    Owners, modes, links, devices, attributes and whiteouts stay; every time becomes EPOCH.

    Args:
        cache: The cache.
        key: The stage key of the layer's inputs.
        name: The name that the returned layer has.
        compression: "gzip" or "zstd".
        open_tar: Opens the tar: uncompressed, gzip or zstd. It is called, and its result closed,
            only if the cache lacks the layer.
        change: Changes the list of entries, if given.
    """

    def write(sink: tar_file.Sink) -> None:
        spool = cache.path("blobs", f".tmp-{key}.{compression}.tar")
        with (
            open_tar() as packed,
            blob_compression.decompress_stream(packed) as plain,
            tar_file.spool_tar(plain, spool) as entries,
        ):
            tar_file.write_tar(change(entries) if change else entries, sink)

    return _ensure_layer(cache, key, name, compression, write)


def _ensure_layer(
    cache: Cache, key: str, name: str, compression: str, write: Callable[[tar_file.Sink], None]
) -> Layer:
    """Return the layer of a key; call `write` for its tar if the cache lacks it."""
    if layer := find_layer(cache, key, name, compression):
        return layer
    with cache.lock(f"layers-{key}-{compression}"):
        if layer := find_layer(cache, key, name, compression):
            return layer
        sums = _write_blob(cache, f".tmp-{key}.{compression}", compression, write)
        layer = Layer(
            name,
            sums.diff_id,
            sums.digest,
            sums.size,
            sums.unpacked,
            blob_compression.MEDIA_TYPES[compression],
            key,
        )
        write_atomic(
            _record_path(cache, key, compression),
            json.dumps({"format": blob_compression.FORMAT, **asdict(layer)}, sort_keys=True),
        )
        return layer


def _write_blob(
    cache: Cache, temporary_name: str, compression: str, write: Callable[[tar_file.Sink], None]
) -> blob_compression.BlobSums:
    """Write a tar as a blob of the cache, under the name of its digest."""
    temporary = cache.path("blobs", temporary_name)
    try:
        with (
            open(temporary, "wb") as out,
            blob_compression.Compressor(out, compression) as sink,
        ):
            write(sink)
            sums = sink.finish()
        os.chmod(temporary, 0o444)
        os.utime(temporary, (EPOCH, EPOCH))  # whoever edits the blob changes its time
        final = blob_path(cache, sums.digest)
        final.parent.mkdir(exist_ok=True)
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return sums
