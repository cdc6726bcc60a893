"""Download images, documents and blobs from a registry, each checked against its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.secrets import redact
from builder.images.oci import oci_documents, reference
from builder.images.registry.transport import Connection, MismatchError
from builder.images.registry.upload import Meter
from rosetta.core.atomic_files import replace_file
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from pathlib import Path

# Docker's forerunners of OCI's index and manifest.
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX_TYPES = (oci_documents.INDEX, _DOCKER_INDEX)
DOCUMENT_TYPES = (oci_documents.INDEX, oci_documents.MANIFEST, _DOCKER_INDEX, _DOCKER_MANIFEST)


@dataclass(frozen=True)
class Document:
    """A manifest or an index, as the registry sent it."""

    media_type: str
    digest: str
    data: bytes

    def json(self) -> dict[str, Any]:
        """Return the content. Raises UserError if it is not a JSON object."""
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise UserError(
                f"document {_shorten(self.digest)} of the registry is not a JSON object",
                "",
                "check the name and the proxy settings",
            )
        return value


def _shorten(digest: str) -> str:
    """Return the first twelve hex digits of a sha256 digest, for messages."""
    return f"{digest.removeprefix('sha256:')[:12]}…"


def read_document(connection: Connection, selector: str) -> Document:
    """Return a manifest or an index of the repository.

    Args:
        connection: A connection to the repository.
        selector: A tag, or a digest "sha256:<hex>".

    Raises:
        UserError: The registry has no such document, or sends something else.
    """
    is_digest = ":" in selector
    name = f"document {_shorten(selector)}" if is_digest else f"the tag {selector}"

    def get() -> Document:
        response = connection.request(
            "GET",
            connection.url(f"manifests/{selector}"),
            (200,),
            headers={"Accept": ", ".join(DOCUMENT_TYPES)},
            follow=True,
            stream=True,
        )
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        digest_header = response.headers.get("Docker-Content-Digest", "")
        data = connection.read_document(response)
        if media_type not in DOCUMENT_TYPES:
            raise _make_type_error(connection, media_type)
        digest = oci_documents.compute_digest(data)
        # The header is optional. A tag without it cannot be verified.
        expected = selector if is_digest else (digest_header or digest)
        if digest != expected:
            raise MismatchError(
                f"the registry sent a document that is not {_shorten(redact(expected))}"
            )
        return Document(media_type, expected, data)

    document: Document = connection.retry(f"reading {name}", get)
    return document


def _make_type_error(connection: Connection, media_type: str) -> UserError:
    """Return the error for an answer that is neither a manifest nor an index."""
    if media_type == "text/html":
        content = "a web page (a login page or a proxy's answer?)"
    else:
        content = media_type or "something without a type"
    return UserError(
        f"the registry sent {content}, not an image",
        str(connection.reference),
        "check the name and the proxy settings",
        kind=INVALID,
        value=media_type,
    )


def read_small_blob(connection: Connection, digest: str) -> bytes:
    """Return a small blob. The caller must check its hash, its signature or its content."""

    def read_blob() -> bytes:
        return connection.read_document(
            connection.request(
                "GET",
                connection.url(f"blobs/{digest}"),
                (200,),
                headers={"Accept-Encoding": "identity"},
                follow=True,
                stream=True,
            )
        )

    blob: bytes = connection.retry(f"reading blob {_shorten(digest)}", read_blob)
    return blob


def download_blob(name: str, digest: str, size: int, target: Path) -> None:
    """Download a blob of a repository, over a connection of its own.

    Args:
        name: The repository, HOST/NAME.
        digest: The blob's digest, "sha256:<hex>".
        size: The blob's size in bytes.
        target: The file to write; it appears when the blob is complete and verified.
    """
    with (
        Connection(reference.parse_reference(name), "pull") as connection,
        Meter(f"pull of {_shorten(digest)}", size) as meter,
    ):
        _download_over(connection, digest, size, target, meter)


def _download_over(
    connection: Connection, digest: str, size: int, target: Path, meter: Meter
) -> None:
    """Download a blob over an open connection; for the other arguments see `download_blob`."""
    with replace_file(target, None) as temporary:
        connection.retry(
            f"reading blob {_shorten(digest)}",
            lambda: _download_once(connection, digest, size, temporary, meter),
        )


def _download_once(
    connection: Connection, digest: str, size: int, file: Path, meter: Meter
) -> None:
    """Try once to download a blob.

    Raises:
        MismatchError: The content does not have the blob's size and digest.
    """
    received, checksum = 0, hashlib.sha256()
    try:
        with (
            connection.request(
                "GET",
                connection.url(f"blobs/{digest}"),
                (200,),
                headers={"Accept-Encoding": "identity"},
                follow=True,
                stream=True,
            ) as response,
            open(file, "wb") as out,
        ):
            for chunk in connection.read_pieces(response, size):
                out.write(chunk)
                checksum.update(chunk)
                received += len(chunk)
                meter.add(len(chunk))
        if received != size or f"sha256:{checksum.hexdigest()}" != digest:
            raise MismatchError(
                f"the registry sent {received} bytes that are not blob {_shorten(digest)}, "
                f"which has {size}"
            )
    except BaseException:
        meter.add(-received)  # the next attempt starts from the beginning
        raise


def pull_image(name: str, folder: Path, *, layers: bool) -> Document:
    """Download an image as an OCI image layout.

    `layout.read_layout(folder, blobs=layers)` reads the result.

    Args:
        name: HOST/NAME:TAG or HOST/NAME@DIGEST.
        folder: The folder to make.
        layers: Whether to download the layers too; without them, only documents.

    Returns:
        The document that the tag or digest names.
    """
    source = _parse_image_name(name)
    blobs_folder = folder / "blobs/sha256"
    blobs_folder.mkdir(parents=True)
    with Connection(source, "pull") as connection:
        top_document = read_document(connection, source.selector)
        manifests = _read_manifests(connection, top_document)
        blobs: dict[str, int] = {}
        for manifest in manifests:
            blobs |= _list_blobs(manifest, layers=layers)
        with Meter(f"pull of {source}", sum(blobs.values())) as meter:
            for digest, size in blobs.items():
                _download_over(connection, digest, size, blobs_folder / digest[7:], meter)
    for document in {document.digest: document for document in (top_document, *manifests)}.values():
        (blobs_folder / document.digest[7:]).write_bytes(document.data)
    _write_layout_files(folder, top_document, str(source))
    log.info(f"{source} is {top_document.digest}")
    return top_document


def _read_manifests(connection: Connection, top_document: Document) -> list[Document]:
    """Return the manifests of an image, without the attestations that engines add."""
    if top_document.media_type not in INDEX_TYPES:
        return [top_document]
    return [
        read_document(connection, str(descriptor.get("digest")))
        for descriptor in _require_list(top_document.json(), "manifests")
        if not _is_attestation(descriptor)
    ]


def _is_attestation(descriptor: dict[str, Any]) -> bool:
    """Return whether an entry of an index is an attestation: its platform is "unknown"."""
    return (descriptor.get("platform") or {}).get("os") == "unknown"


def _list_blobs(manifest: Document, *, layers: bool) -> dict[str, int]:
    """Return the sizes in bytes of a manifest's config and layers, by digest."""
    content = manifest.json()
    descriptors = [content.get("config")]
    if layers:
        descriptors += _require_list(content, "layers")
    return dict(_parse_descriptor(descriptor) for descriptor in descriptors)


def _write_layout_files(folder: Path, top_document: Document, name: str) -> None:
    """Write index.json, which refers to a document under a name, and oci-layout."""
    descriptor = {
        "mediaType": top_document.media_type,
        "digest": top_document.digest,
        "size": len(top_document.data),
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    index = {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": [descriptor]}
    (folder / "index.json").write_bytes(oci_documents.encode_json(index))
    (folder / "oci-layout").write_bytes(oci_documents.encode_json({"imageLayoutVersion": "1.0.0"}))


def _parse_image_name(name: str) -> reference.Reference:
    """Return the reference of an image; raise UserError if it has neither a tag nor a digest."""
    parsed = reference.parse_reference(name)
    if not parsed.selector:
        raise UserError(
            "needs a tag or a digest", str(parsed), "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
        )
    return parsed


def _require_list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects under a key; raise UserError if there is none."""
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"a document of the registry has no list of {key}", "", "check the name")
    return value


def _parse_descriptor(value: Any) -> tuple[str, int]:
    """Return the digest and the size in bytes that a descriptor names."""
    fields = value if isinstance(value, dict) else {}
    digest, size = fields.get("digest"), fields.get("size")
    if (
        not isinstance(digest, str)
        or not reference.is_digest(digest)
        or not isinstance(size, int)
        or size < 0
    ):
        raise UserError(
            "an entry in a document of the registry has no valid sha256 digest or size",
            "",
            "check the name",
        )
    return digest, size
