"""Finish an image: the layers of the package rosetta and of lock.json, then its documents.

This is all that an edit of rosetta/ makes anew. So this module, and what it imports, knows neither
manifests nor locks nor sources.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.cache import stage_key
from builder.images import image_settings
from builder.images.image_settings import Origin
from builder.images.oci import layer, oci_documents
from builder.images.oci.tar_file import walk_folder
from builder.packages import build_record, package_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.core.cache import Cache
    from builder.images.foundation import Foundation, Foundations
    from builder.images.oci.layer import Layer
    from builder.images.oci.tar_entry import Entry
    from builder.packages.environment_assembly import Part
    from builder.packages.package_parts import Package
    from builder.upstream.checkout import Publisher


@dataclass(frozen=True)
class BuiltImage:
    """An image of one or more architectures, all blobs of which are in the cache."""

    index: oci_documents.Index
    records: dict[str, dict[str, Any]]  # the lock.json of each architecture


def finish_image(cache: Cache, foundations: Foundations, publisher: Publisher) -> BuiltImage:
    """Return the image on these foundations; equal inputs give the same index on every machine.

    Args:
        cache: The cache that has, or gets, the layers.
        foundations: The layers below, by architecture.
        publisher: Who builds the image, for the labels.
    """
    package = package_parts.read_package()
    images, records, licences = [], {}, set[str]()
    for architecture, foundation in foundations.by_architecture.items():
        origin = Origin(publisher, foundation.licences)
        image, record = _finish_architecture(
            cache, foundation, foundations.compression, package, origin
        )
        images.append(image)
        records[architecture] = record
        licences.update(foundation.licences)
    origin = Origin(publisher, tuple(sorted(licences)))
    annotations = image_settings.make_annotations(next(iter(records.values())), origin)
    return BuiltImage(oci_documents.make_index(images, annotations), records)


def _finish_architecture(
    cache: Cache, foundation: Foundation, compression: str, package: Package, origin: Origin
) -> tuple[oci_documents.Image, dict[str, Any]]:
    """Return the image of one architecture, and its lock.json."""
    parts = package_parts.divide_package(package, foundation.python)
    layers = [
        *foundation.layers,
        *(
            write_parts(cache, compression, f"rosetta-{bucket}", [part])
            for bucket, part in parts.items()
        ),
    ]
    rows = [
        {
            "name": image_layer.name,
            "diff_id": image_layer.diff_id,
            "digest": image_layer.digest,
            "size": image_layer.size,
        }
        for image_layer in layers
    ]
    record = {**foundation.record, "compression": compression, "layers": rows}
    # This layer changes with every other one, because lock.json lists all layers below.
    record_parts = [
        *package_parts.completion_parts(cache, package),
        *package_parts.revision_parts(),
        build_record.record_part(record),
    ]
    layers.append(write_parts(cache, compression, "record", record_parts))
    image = oci_documents.make_image(
        foundation.record["architecture"],
        layers,
        image_settings.format_creation_time(record),
        image_settings.make_settings(record, origin, foundation.env),
        image_settings.make_annotations(record, origin),
    )
    return image, record


def write_parts(
    cache: Cache, compression: str, name: str, parts: Sequence[Part], fixed: Sequence[Entry] = ()
) -> Layer:
    """Return a layer of parts, and of further files whose content is in memory."""
    inputs = {
        "parts": {part.path: part.key for part in parts},
        "fixed": [[entry.path, entry.mode, (entry.data or b"").decode()] for entry in fixed],
    }

    def list_entries() -> Iterator[Entry]:
        with tempfile.TemporaryDirectory(prefix="rosetta-layer-") as folder:
            for part in parts:
                target = Path(folder, part.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                part.make(target)
            # The content is read into memory: the writer collects all entries before it reads any
            # content, and this folder is removed by then.
            for entry in walk_folder(folder, ""):
                if entry.kind == "file":
                    yield replace(entry, source="", data=Path(entry.source).read_bytes())
                else:
                    yield entry
            yield from fixed

    key = stage_key("layer", {"name": name, **inputs})
    return layer.write_layer(cache, key, name, compression, list_entries)
