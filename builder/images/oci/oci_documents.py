"""The documents of an OCI image, as canonical JSON: the same values give the same bytes, and so the
same digests, everywhere.
"""

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
    """Return the digest of `data` as OCI writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def encode_json(value: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def make_descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    """Return what another document says of `data`."""
    return {"mediaType": media_type, "digest": compute_digest(data), "size": len(data)}


@dataclass(frozen=True)
class Image:
    """One platform's image: its layers from the bottom up, its config and its manifest."""

    architecture: str  # "amd64" | "arm64"
    layers: tuple[Layer, ...]
    config: bytes
    manifest: bytes

    @property
    def config_digest(self) -> str:
        return compute_digest(self.config)

    @property
    def digest(self) -> str:
        return compute_digest(self.manifest)

    @property
    def size(self) -> int:
        """Bytes that a registry holds of it."""
        return sum(layer.size for layer in self.layers) + len(self.config) + len(self.manifest)


@dataclass(frozen=True)
class Index:
    """An image of one or more platforms."""

    images: tuple[Image, ...]
    document: bytes

    @property
    def digest(self) -> str:
        return compute_digest(self.document)


def make_platform(architecture: str) -> dict[str, str]:
    """Return the OCI platform of an architecture."""
    return {"architecture": architecture, "os": "linux", **_VARIANTS.get(architecture, {})}


def make_config(
    architecture: str, layers: Sequence[Layer], created: str, settings: Mapping[str, Any]
) -> bytes:
    """Return the config document.

    `created`: RFC 3339, UTC. `settings`: Env, Entrypoint, Cmd, WorkingDir, Labels, User, as the
    image specification has them.
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


def make_manifest(
    layers: Sequence[Layer], of_config: bytes, annotations: Mapping[str, str]
) -> bytes:
    """Return the manifest of one platform."""
    return encode_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": make_descriptor(CONFIG, of_config),
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
    """One platform's image of these layers."""
    of_config = make_config(architecture, layers, created, settings)
    return Image(
        architecture, tuple(layers), of_config, make_manifest(layers, of_config, annotations)
    )


def make_index(images: Sequence[Image], annotations: Mapping[str, str]) -> Index:
    """Return the document over all platforms, in the order of their names: also where there is only
    one.
    """
    ordered = sorted(images, key=lambda each: each.architecture)
    manifests = [
        {**make_descriptor(MANIFEST, each.manifest), "platform": make_platform(each.architecture)}
        for each in ordered
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
