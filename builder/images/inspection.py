"""Look at a finished image wherever it is: in an OCI layout, a registry or an engine."""

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
    """An image: its platforms and how to read a layer.

    `digest` is that of its index; empty where an engine keeps none.
    """

    images: tuple[Image, ...]
    digest: str
    opener: Callable[[Image, Layer], IO[bytes]]

    @contextlib.contextmanager
    def open(self, image: Image, one: Layer) -> Iterator[IO[bytes]]:
        """Open the blob of a layer, packed as it is stored."""
        stream = self.opener(image, one)
        try:
            yield stream
        finally:
            stream.close()

    def lock(self, image: Image) -> dict[str, Any]:
        """Its lock.json, from the highest layer that has one."""
        for one in reversed(image.layers):
            if data := self._read_layer(image, one, _LOCK):
                return dict(json.loads(data))
        raise UserError(
            "has no lock.json",
            f"the image for linux/{image.architecture}",
            "it is no image that this builder made",
        )

    def read(self, image: Image, path: str) -> bytes:
        """Return a file of the highest layer, which holds what describes the image; nothing where
        that lacks it.
        """
        return self._read_layer(image, image.layers[-1], path)

    def _read_layer(self, image: Image, one: Layer, path: str) -> bytes:
        with (
            self.open(image, one) as packed,
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
    """Yield the image that `text` names: oci:PATH, registry:HOST/NAME:TAG, or a name in the engine.

    What has to be copied goes into `scratch`.
    """
    kind, _, rest = text.partition(":")
    if kind in ("oci", "registry") and rest:
        folder = Path(rest).absolute()
        if kind == "registry":
            folder = scratch / "pulled"
            download.pull_image(rest, folder, layers=True)
        read = layout.read_layout(folder)
        yield InspectedImage(
            read.index.images,
            read.index.digest,
            lambda _, one: open(layout.blob_path(folder, one), "rb"),  # noqa: SIM115 - Found.open closes it
        )
        return
    taken = container_engine.choose_engine(engine)
    if not taken.find_digest(text):
        raise UserError(
            "is no image of the engine's",
            text,
            f"give a name that {taken.name} has, oci:PATH or registry:HOST/NAME:TAG",
        )
    file = scratch / "saved.tar"
    taken.save(text, file)
    saved = image_archive.read_archive(file)
    layers = tuple(
        layer.Layer("", diff_id, "", 0, 0, "", str(number))
        for number, diff_id in enumerate(saved.diff_ids)
    )
    yield InspectedImage(
        (oci_documents.Image(str(saved.config["architecture"]), layers, saved.raw, b""),),
        "",
        lambda _, one: saved.layers[int(one.key)](),
    )
