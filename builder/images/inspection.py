"""Read a finished image from an OCI layout, a registry or an engine."""

from __future__ import annotations

import contextlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.images import image_settings
from builder.images.engines import container_engine, image_archive
from builder.images.oci import blob_compression, layer, layout, oci_documents
from builder.images.registry import download
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.images.oci.layer import Layer
    from builder.images.oci.oci_documents import Image

_LOCK = f"{image_settings.HOME}/lock.json"


@dataclass(frozen=True)
class InspectedImage:
    """An image whose layers can be read."""

    images: tuple[Image, ...]  # one of each architecture
    digest: str  # of the index; empty if an engine keeps none
    opener: Callable[[Image, Layer], IO[bytes]]

    @contextlib.contextmanager
    def open(self, image: Image, image_layer: Layer) -> Iterator[IO[bytes]]:
        """Open the blob of a layer, compressed as it is stored."""
        stream = self.opener(image, image_layer)
        try:
            yield stream
        finally:
            stream.close()

    def lock(self, image: Image) -> dict[str, Any]:
        """Return the image's lock.json."""
        if data := self.read(image, _LOCK):
            return dict(json.loads(data))
        raise UserError(
            "has no lock.json",
            f"the image for linux/{image.architecture}",
            "give an image that this builder made",
        )

    def read(self, image: Image, path: str) -> bytes:
        """Return a file of the highest layer that has the file; empty if no layer has it."""
        for image_layer in reversed(image.layers):
            if data := self._read_layer(image, image_layer, path):
                return data
        return b""

    def _read_layer(self, image: Image, image_layer: Layer, path: str) -> bytes:
        with (
            self.open(image, image_layer) as packed,
            blob_compression.decompress_stream(packed) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            for member in archive:
                file = archive.extractfile(member) if member.name == path else None
                if file:
                    return file.read()
        return b""


@contextlib.contextmanager
def open_image(text: str, engine: str, scratch: Path) -> Iterator[InspectedImage]:
    """Yield the image that a text names.

    Args:
        text: oci:PATH, registry:HOST/NAME:TAG, or a name in the engine.
        engine: "docker", "buildah", or "" for the first that answers.
        scratch: A folder for what has to be copied.
    """
    kind, _, place = text.partition(":")
    if kind == "oci" and place:
        yield _open_layout(Path(place).absolute())
    elif kind == "registry" and place:
        folder = scratch / "pulled"
        download.pull_image(place, folder, layers=True)
        yield _open_layout(folder)
    else:
        yield _open_engine_image(text, engine, scratch / "saved.tar")


def _open_layout(folder: Path) -> InspectedImage:
    read = layout.read_layout(folder)
    return InspectedImage(
        read.index.images,
        read.index.digest,
        lambda _, image_layer: open(layout.blob_path(folder, image_layer), "rb"),
    )


def _open_engine_image(name: str, engine_name: str, file: Path) -> InspectedImage:
    """Save an image of an engine into a file, and return it."""
    engine = container_engine.choose_engine(engine_name)
    if not engine.find_digest(name):
        raise UserError(
            "is not an image of the engine",
            name,
            f"give a name that {engine.name} has, oci:PATH or registry:HOST/NAME:TAG",
        )
    engine.save(name, file)
    saved = image_archive.read_archive(file)
    # The key of a layer is its number in the archive.
    layers = tuple(
        layer.Layer("", diff_id, "", 0, 0, "", str(number))
        for number, diff_id in enumerate(saved.diff_ids)
    )
    image = oci_documents.Image(str(saved.config["architecture"]), layers, saved.raw, b"")
    return InspectedImage((image,), "", lambda _, image_layer: saved.layers[int(image_layer.key)]())
