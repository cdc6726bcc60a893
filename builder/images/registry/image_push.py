"""Push an image to a registry: blobs and documents by digest, read back before any tag moves."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from builder.images.oci import layer, oci_documents, reference
from builder.images.registry.download import DOCUMENT_TYPES, read_document, read_small_blob
from builder.images.registry.transport import Connection, TransientError
from builder.images.registry.upload import Meter, format_size, has_blob, send_blob
from rosetta.core.errors import FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

_NOTHING_TAGGED = "nothing was tagged; run again: what has arrived is not sent twice"


@dataclass(frozen=True)
class PushResult:
    """What a push did. Sizes are in bytes, of blobs and documents."""

    reference: str
    digest: str
    total: int  # of the image
    moved: int  # sent over the network
    mounted: int = 0  # taken from another repository of the registry
    previous: str = ""  # the digest that the tag had before; empty if the tag is new

    def __str__(self) -> str:
        text = (
            f"{self.reference} is {self.digest}: moved {format_size(self.moved)} of "
            f"{format_size(self.total)}"
        )
        if self.mounted:
            text += f", mounted {format_size(self.mounted)} from another repository"
        return text


@dataclass(frozen=True)
class _Blob:
    """A blob to push: a file of the cache, or a config in memory."""

    digest: str
    size: int
    source: Path | bytes


def push_image(cache: Cache, index: Index, name: str, mount_from: str = "") -> PushResult:
    """Push an image to a registry, and move its tag once all of it was read back.

    Args:
        cache: The cache that has the image's blobs.
        index: The image.
        name: HOST/NAME:TAG.
        mount_from: A repository of the same registry that may have some of the blobs.

    Raises:
        UserError: The push failed. The tag then points to what it pointed to before.
    """
    target = reference.parse_reference(name)
    if not target.tag or target.digest:
        raise UserError("needs a tag, and no digest", str(target), "give HOST[:PORT]/NAME:TAG")
    with Connection(target, "pull,push", mount_from) as connection:
        moved, mounted, total = upload_image(
            connection, functools.partial(layer.blob_path, cache), index, mount_from
        )
        previous = move_tag(connection, target.tag, index.document)
    return PushResult(str(target), index.digest, total, moved, mounted, previous)


def upload_image(
    connection: Connection, find_blob: Callable[[str], Path], index: Index, mount_from: str = ""
) -> tuple[int, int, int]:
    """Bring all of an image into a repository by digest, and read it back.

    Args:
        connection: A connection to the repository.
        find_blob: Returns the file of a layer by its digest.
        index: The image.
        mount_from: A repository of the same registry that may have some of the blobs.

    Returns:
        Bytes that were sent, bytes that were mounted, and bytes of the whole image.
    """
    blobs = _list_blobs(index, find_blob)
    documents = {image.digest: image.manifest for image in index.images}
    documents[index.digest] = index.document
    documents_size = sum(len(data) for data in documents.values())
    sent, mounted = _send_missing(connection, blobs, mount_from)
    for digest, data in documents.items():
        put_document(connection, digest, data)
    connection.map_threads(_verify_blob, [(connection, blob) for blob in blobs])
    for digest, data in documents.items():
        _verify_document(connection, digest, data)
    return sent + documents_size, mounted, sum(blob.size for blob in blobs) + documents_size


def _list_blobs(index: Index, find_blob: Callable[[str], Path]) -> list[_Blob]:
    """Return the layers and configs of an image, each digest once."""
    blobs: dict[str, _Blob] = {}
    for image in index.images:
        for image_layer in image.layers:
            digest = image_layer.digest
            blobs[digest] = _Blob(digest, image_layer.size, find_blob(digest))
    for image in index.images:
        blobs[image.config_digest] = _Blob(image.config_digest, len(image.config), image.config)
    return list(blobs.values())


def _send_missing(connection: Connection, blobs: list[_Blob], mount_from: str) -> tuple[int, int]:
    """Send the blobs that the repository lacks, the largest first.

    Returns:
        Bytes that were sent, and bytes that were mounted.
    """
    are_present = connection.map_threads(
        has_blob, [(connection, blob.digest, blob.size) for blob in blobs]
    )
    missing = [blob for blob, present in zip(blobs, are_present, strict=True) if not present]
    missing.sort(key=lambda blob: -blob.size)
    missing_size = sum(blob.size for blob in missing)
    with Meter(f"push to {connection.reference}", missing_size) as meter:
        were_sent = connection.map_threads(
            send_blob,
            [
                (connection, blob.digest, blob.size, blob.source, mount_from, meter)
                for blob in missing
            ],
        )
    sent = sum(blob.size for blob, was_sent in zip(missing, were_sent, strict=True) if was_sent)
    return sent, missing_size - sent


def move_tag(connection: Connection, name: str, data: bytes) -> str:
    """Let a tag point to a document that is in the repository.

    Returns:
        The digest that the tag pointed to before, or "".
    """
    previous = str(
        connection.retry(f"asking for the tag {name}", lambda: _read_tag(connection, name))
    )
    if previous != oci_documents.compute_digest(data):
        put_document(connection, name, data)
    _verify_document(connection, name, data)
    return previous


def _read_tag(connection: Connection, name: str) -> str:
    """Return the digest that a tag points to; empty if there is no such tag."""
    with connection.request(
        "HEAD",
        connection.url(f"manifests/{name}"),
        (200, 404),
        headers={"Accept": ", ".join(DOCUMENT_TYPES)},
        follow=True,
    ) as answer:
        return answer.headers.get("Docker-Content-Digest", "") if answer.status_code == 200 else ""


def put_document(connection: Connection, name: str, data: bytes) -> None:
    """Put a manifest or an index under its digest or under a tag."""
    media_type = json.loads(data)["mediaType"]
    digest = oci_documents.compute_digest(data)

    def put() -> None:
        with connection.request(
            "PUT",
            connection.url(f"manifests/{name}"),
            (201,),
            body=lambda: data,
            headers={"Content-Type": media_type},
        ) as answer:
            answered = answer.headers.get("Docker-Content-Digest", digest)
            if answered != digest:
                raise TransientError(
                    f"the registry computed the digest {redact(answered)[:19]}… for it"
                )

    try:
        connection.retry(f"putting {_describe_name(name)}", put)
    except UserError as error:
        raise UserError(error.what, error.where, _NOTHING_TAGGED) from error


def _verify_blob(connection: Connection, blob: _Blob) -> None:
    """Raise UserError unless the registry has the blob. The content of a config is compared."""
    if not has_blob(connection, blob.digest, blob.size):
        raise UserError(
            f"the registry took blob {blob.digest[7:19]}… and has lost it",
            str(connection.reference),
            _NOTHING_TAGGED,
            kind=FAILED,
            value=blob.digest,
        )
    if not isinstance(blob.source, bytes):
        return
    if read_small_blob(connection, blob.digest) != blob.source:
        raise UserError(
            f"the registry gives another content for blob {blob.digest[7:19]}…",
            str(connection.reference),
            _NOTHING_TAGGED,
        )


def _verify_document(connection: Connection, name: str, expected: bytes) -> None:
    """Raise UserError unless the registry gives this document under a digest or a tag."""
    try:
        if read_document(connection, name).data != expected:
            raise UserError(
                f"the registry gives another document for {_describe_name(name)} than it was given",
                str(connection.reference),
            )
    except UserError as error:
        is_tag = ":" not in name
        raise UserError(
            error.what,
            error.where,
            "check the tag by hand, then run again" if is_tag else _NOTHING_TAGGED,
        ) from error


def _describe_name(name: str) -> str:
    return f"document {name[7:19]}…" if name.startswith("sha256:") else f"the tag {name}"
