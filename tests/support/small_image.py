"""A small image for tests, its blobs in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.images.oci import layer, oci_documents
from builder.images.oci.tar_entry import make_file, make_link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.cache import Cache

CREATED = "2026-01-02T03:04:05Z"
SETTINGS = {
    "Env": ["PATH=/bin"],
    "Entrypoint": ["/bin/entry"],
    "Cmd": ["bash"],
    "WorkingDir": "/work",
    "Labels": {"org.opencontainers.image.title": "t5x"},
}


def make_image(
    cache: Cache, architecture: str = "amd64", *, compression: str = "gzip", top: bytes = b"top"
) -> oci_documents.Image:
    """Three layers: two that all have in common, and one of the architecture and `top`."""
    layers = [
        layer.write_layer(
            cache,
            "base",
            "base",
            compression,
            lambda: [
                make_file("bin/sh", b"#!" + bytes(range(256)) * 300, 0o755),
                make_link("bin/bash", "sh"),
            ],
        ),
        layer.write_layer(
            cache,
            "python",
            "python",
            compression,
            lambda: [make_file("opt/env/x.py", b"x = 1\n" * 1000)],
        ),
        layer.write_layer(
            cache,
            f"top-{architecture}-{top.hex()}",
            "rosetta",
            compression,
            lambda: [make_file("opt/top", top + architecture.encode())],
        ),
    ]
    return oci_documents.make_image(
        architecture, layers, CREATED, SETTINGS, {"org.opencontainers.image.title": "t5x"}
    )


def make_index(
    cache: Cache,
    architectures: Sequence[str] = ("amd64", "arm64"),
    *,
    compression: str = "gzip",
    top: bytes = b"top",
) -> oci_documents.Index:
    """An index over such images."""
    images = [
        make_image(cache, architecture, compression=compression, top=top)
        for architecture in architectures
    ]
    return oci_documents.make_index(images, {"org.opencontainers.image.title": "t5x"})
