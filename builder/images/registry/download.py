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

MANIFEST_TYPES = (
    oci_documents.INDEX,
    oci_documents.MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (MANIFEST_TYPES[0], MANIFEST_TYPES[2])


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
                f"document {self.digest[7:19]}… of the registry is not JSON",
                "",
                "check the name and the proxy settings",
            )
        return value


def read_document(connection: Connection, selector: str) -> Document:
    """Return the manifest or index of a tag or a digest in the repository.

    Raises:
        UserError: The registry has no such document, or sends something else.
    """
    is_digest = ":" in selector
    name = f"document {selector[7:19]}…" if is_digest else f"the tag {selector}"

    def get() -> Document:
        answer = connection.request(
            "GET",
            connection.url(f"manifests/{selector}"),
            (200,),
            headers={"Accept": ", ".join(MANIFEST_TYPES)},
            follow=True,
            stream=True,
        )
        media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        answered_digest = answer.headers.get("Docker-Content-Digest", "")
        data = connection.read_document(answer)
        if media_type not in MANIFEST_TYPES:
            raise _wrong_type_error(connection, media_type)
        digest = oci_documents.compute_digest(data)
        expected = selector if is_digest else answered_digest or digest
        if digest != expected:
            raise MismatchError(f"a document came that is not {redact(expected)[:19]}…")
        return Document(media_type, expected, data)

    document: Document = connection.retry(f"reading {name}", get)
    return document


def _wrong_type_error(connection: Connection, media_type: str) -> UserError:
    if media_type == "text/html":
        content = "a web page (a login page or a proxy's answer?)"
    else:
        content = media_type or "something without a type"
    return UserError(
        f"gives {content}, not an image",
        str(connection.reference),
        "check the name and the proxy settings",
        kind=INVALID,
        value=media_type,
    )


def fetch_blob(name: str, digest: str, size: int, target: Path) -> None:
    """Download a blob of a repository, over a connection of its own.

    Args:
        name: The repository, HOST/NAME.
        digest: The blob's digest, "sha256:<hex>".
        size: The blob's size in bytes.
        target: The file to write; it appears when the blob is complete and verified.
    """
    with (
        Connection(reference.parse_reference(name), "pull") as connection,
        Meter(f"pull of {digest[7:19]}…", size) as meter,
    ):
        download_blob(connection, digest, size, target, meter)


def download_blob(
    connection: Connection, digest: str, size: int, target: Path, meter: Meter
) -> None:
    """Download a blob over an open connection; the arguments are those of `fetch_blob`."""
    with replace_file(target, None) as temporary:
        connection.retry(
            f"reading blob {digest[7:19]}…",
            lambda: _download_once(connection, digest, size, temporary, meter),
        )


def _download_once(
    connection: Connection, digest: str, size: int, file: Path, meter: Meter
) -> None:
    """Download a blob. Raises MismatchError if what came does not have its digest."""
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
            ) as answer,
            open(file, "wb") as out,
        ):
            for piece in connection.read_pieces(answer, size):
                out.write(piece)
                checksum.update(piece)
                received += len(piece)
                meter.add(len(piece))
        if received != size or f"sha256:{checksum.hexdigest()}" != digest:
            raise MismatchError(
                f"{received} bytes came that are not blob {digest[7:19]}… of {size}"
            )
    except BaseException:
        meter.add(-received)
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
    source = _parse_selected(name)
    blobs_folder = folder / "blobs/sha256"
    blobs_folder.mkdir(parents=True)
    with Connection(source, "pull") as connection:
        top = read_document(connection, source.selector)
        manifests = _read_manifests(connection, top)
        blobs: dict[str, int] = {}
        for manifest in manifests:
            blobs |= _list_blobs(manifest, layers=layers)
        with Meter(f"pull of {source}", sum(blobs.values())) as meter:
            for digest, size in blobs.items():
                download_blob(connection, digest, size, blobs_folder / digest[7:], meter)
    for document in {document.digest: document for document in (top, *manifests)}.values():
        (blobs_folder / document.digest[7:]).write_bytes(document.data)
    _write_layout_files(folder, top, str(source))
    log.info(f"{source} is {top.digest}")
    return top


def _read_manifests(connection: Connection, top: Document) -> list[Document]:
    """Return the manifests of an image, without the attestations that engines add."""
    if top.media_type not in INDEX_TYPES:
        return [top]
    return [
        read_document(connection, str(described.get("digest")))
        for described in _require_list(top.json(), "manifests")
        if (described.get("platform") or {}).get("os") != "unknown"
    ]


def _list_blobs(manifest: Document, *, layers: bool) -> dict[str, int]:
    """Return the sizes in bytes of a manifest's config and layers, by digest."""
    content = manifest.json()
    described = [content.get("config")]
    if layers:
        described += _require_list(content, "layers")
    return dict(map(_parse_descriptor, described))


def _write_layout_files(folder: Path, top: Document, name: str) -> None:
    """Write index.json and oci-layout of an OCI image layout."""
    described = {
        "mediaType": top.media_type,
        "digest": top.digest,
        "size": len(top.data),
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    index = {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": [described]}
    (folder / "index.json").write_bytes(oci_documents.encode_json(index))
    (folder / "oci-layout").write_bytes(oci_documents.encode_json({"imageLayoutVersion": "1.0.0"}))


def _parse_selected(name: str) -> reference.Reference:
    parsed = reference.parse_reference(name)
    if not parsed.selector:
        raise UserError(
            "needs a tag or a digest", str(parsed), "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
        )
    return parsed


def _require_list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
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
            "a document of the registry names something without sha256 and size",
            "",
            "check the name",
        )
    return digest, size
