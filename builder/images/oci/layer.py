"""A layer of an image: written once into the cache as a blob, found there by the key of its inputs
afterwards.
"""

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
    """One layer. Digests are "sha256:<hex>", sizes in bytes."""

    name: str  # "base", "os", "cuda", "jax", "tensorflow", "python", "own", "sources", "rosetta"
    diff_id: str  # of the uncompressed tar
    digest: str  # of the blob
    size: int  # of the blob
    unpacked: int  # of the uncompressed tar
    media_type: str
    key: str  # stage_key of its inputs


def blob_path(cache: Cache, digest: str) -> Path:
    """Where a blob lies in the cache."""
    return cache.path("blobs") / "sha256" / digest.removeprefix("sha256:")


def _record_path(cache: Cache, key: str, compression: str) -> Path:
    return cache.path("layers", f"{key}.{compression}.json")


def find_layer(cache: Cache, key: str, name: str, compression: str) -> Layer | None:
    """Return the layer of this key if the cache has it whole, that is by the size and time of its
    blob; notes that it was used.
    """
    record = _record_path(cache, key, compression)
    try:
        known = json.loads(record.read_text(encoding="ascii"))
        if known.pop("format") != blob_compression.FORMAT:
            return None
        layer = Layer(**known)
        state = os.stat(blob_path(cache, layer.digest))
        if state.st_size != layer.size or state.st_mtime != EPOCH:
            return None
        os.utime(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return replace(layer, name=name)


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by path, with the folders above each that are not among them (0755).

    Raises UserError for a path twice, unless both are the same folder.
    """
    found: dict[str, Entry] = {}
    for entry in entries:
        path = entry.path
        if (
            not path
            or path[0] == "/"
            or path[-1] == "/"
            or "//" in path
            or "\0" in path
            or ".." in path.split("/")
        ):
            raise UserError(
                f"{path!r} is no path of a layer", entry.source, kind=INVALID, value=path
            )
        if path in found and not (entry.kind == "dir" and found[path] == entry):
            raise UserError(
                f"two entries of a layer have the path {path!r}",
                entry.source,
                kind=CONFLICT,
                value=path,
            )
        found[path] = entry
    for path in list(found):
        above = path.rpartition("/")[0]
        while above and above not in found:
            found[above] = Entry(above, "dir", 0o755)
            above = above.rpartition("/")[0]
    return [found[path] for path in sorted(found)]


def write_layer(
    cache: Cache, key: str, name: str, compression: str, entries: Callable[[], Iterable[Entry]]
) -> Layer:
    """Return the layer of this key; made of `entries()` if the cache lacks it.

    Compression: "gzip" or "zstd".
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
    stream: Callable[[], IO[bytes]],
    keep: Callable[[Entry], Entry | None] | None = None,
    change: Callable[[list[Entry]], Iterable[Entry]] | None = None,
) -> Layer:
    """Return a layer of another's tar (plain, gzip or zstd), written again our way: owners, modes,
    links, devices, attributes and whiteouts kept, times EPOCH.

    `stream` is called, and its result closed, only if the cache lacks the layer. `keep` may change
    or drop (None) entries one by one, `change` all of them.
    """

    def produce(sink: tar_file.Sink) -> None:
        with (
            stream() as packed,
            blob_compression.decompress_stream(packed) as plain,
            tar_file.spool_tar(
                plain, cache.path("blobs", f".tmp-{key}.{compression}.tar")
            ) as entries,
        ):
            changed = change(entries) if change else entries
            tar_file.write_tar(
                (kept for entry in changed if (kept := keep(entry) if keep else entry) is not None),
                sink,
            )

    return _ensure_layer(cache, key, name, compression, produce)


def _ensure_layer(
    cache: Cache, key: str, name: str, compression: str, produce: Callable[[tar_file.Sink], None]
) -> Layer:
    if known := find_layer(cache, key, name, compression):
        return known
    with cache.lock(f"layers-{key}-{compression}"):
        if known := find_layer(cache, key, name, compression):
            return known
        temporary = cache.path("blobs", f".tmp-{key}.{compression}")
        try:
            with (
                open(temporary, "wb") as out,
                blob_compression.Compressor(out, compression) as sink,
            ):
                produce(sink)
                sums = sink.finish()
            os.chmod(temporary, 0o444)
            os.utime(temporary, (EPOCH, EPOCH))  # whoever edits it changes that
            final = blob_path(cache, sums.digest)
            final.parent.mkdir(exist_ok=True)
            os.replace(temporary, final)  # its name is the hash of what was written
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
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
