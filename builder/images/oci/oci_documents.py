"""The documents of an OCI image, as canonical JSON: equal values give equal bytes and digests."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.images.oci.layer import Layer

CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_VARIANTS = {"arm64": {"variant": "v8"}}


def compute_digest(data: bytes) -> str:
    """Return the digest of a document or blob, as OCI writes it: "sha256:<hex>"."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Return canonical JSON: sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def make_descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    """Return the descriptor by which another document refers to `data`."""
    return {"mediaType": media_type, "digest": compute_digest(data), "size": len(data)}


@dataclass(frozen=True)
class Image:
    """The image of one platform: its layers from the bottom up, its config and its manifest."""

    architecture: str  # "amd64" | "arm64"
    layers: tuple[Layer, ...]
    config: bytes
    manifest: bytes

    @property
    def config_digest(self) -> str:
        """The digest of the config, by which some engines name the image."""
        return compute_digest(self.config)

    @property
    def digest(self) -> str:
        """The digest of the manifest."""
        return compute_digest(self.manifest)

    @property
    def size(self) -> int:
        """Bytes that the image takes in a registry."""
        return sum(layer.size for layer in self.layers) + len(self.config) + len(self.manifest)


@dataclass(frozen=True)
class Index:
    """An image of one or more platforms."""

    images: tuple[Image, ...]
    document: bytes

    @property
    def digest(self) -> str:
        """The digest of the index document."""
        return compute_digest(self.document)


def make_platform(architecture: str) -> dict[str, str]:
    """Return the OCI platform of an architecture."""
    return {"architecture": architecture, "os": "linux", **_VARIANTS.get(architecture, {})}


def make_config(
    architecture: str, layers: Sequence[Layer], created: str, settings: Mapping[str, Any]
) -> bytes:
    """Return the config document.

    Args:
        architecture: "amd64" or "arm64".
        layers: The layers, from the bottom up.
        created: The time of creation, RFC 3339 in UTC.
        settings: Env, Entrypoint, Cmd, WorkingDir, Labels and User, as in the image specification.
    """
    return encode_json(
        {
            **make_platform(architecture),
            "created": created,
            "config": {key: value for key, value in settings.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [
                {"created": created, "created_by": f"rosetta: {layer.name}"} for layer in layers
            ],
        }
    )


def make_manifest(layers: Sequence[Layer], config: bytes, annotations: Mapping[str, str]) -> bytes:
    """Return the manifest of one platform."""
    return encode_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": make_descriptor(CONFIG, config),
            "layers": [
                {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
                for layer in layers
            ],
            **_annotations_field(annotations),
        }
    )


def make_image(
    architecture: str,
    layers: Sequence[Layer],
    created: str,
    settings: Mapping[str, Any],
    annotations: Mapping[str, str],
) -> Image:
    """Return the image of one platform; the arguments are those of `make_config`."""
    config = make_config(architecture, layers, created, settings)
    return Image(architecture, tuple(layers), config, make_manifest(layers, config, annotations))


def make_index(images: Sequence[Image], annotations: Mapping[str, str]) -> Index:
    """Return the index of all platforms, sorted by architecture. One platform has an index, too."""
    ordered = sorted(images, key=lambda image: image.architecture)
    manifests = [
        {
            **make_descriptor(MANIFEST, image.manifest),
            "platform": make_platform(image.architecture),
        }
        for image in ordered
    ]
    document = encode_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            **_annotations_field(annotations),
        }
    )
    return Index(tuple(ordered), document)


def _annotations_field(annotations: Mapping[str, str]) -> dict[str, Any]:
    return {"annotations": dict(annotations)} if annotations else {}
