"""A registry of images: an image goes there by digest and is read back before any tag moves;
documents and blobs come from there, checked.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core.secrets import redact
from builder.images.oci import layer, oci_documents, reference
from builder.images.registry.download import MANIFEST_TYPES, read_document
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
    """What a push did.

    Sizes in bytes, of blobs and documents: `moved` went over the network, `mounted` came from a
    repository beside.
    """

    reference: str
    digest: str
    total: int
    moved: int
    mounted: int = 0
    previous: str = ""  # the digest that the tag had before; empty where it is new

    def __str__(self) -> str:
        return (
            f"{self.reference} is {self.digest}: moved {format_size(self.moved)} of "
            f"{format_size(self.total)}"
        ) + (f", took {format_size(self.mounted)} from beside" if self.mounted else "")


def push_image(cache: Cache, index: Index, name: str, mount_from: str = "") -> PushResult:
    """Push an image whose blobs are in the cache to HOST/NAME:TAG. The tag moves when all the rest
    was read back, and not before.

    `mount_from` is a repository of the same registry that may hold some of the blobs. Raises
    UserError; a tag then points where it did.
    """
    wanted = reference.parse_reference(name)
    if not wanted.tag or wanted.digest:
        raise UserError("needs a tag, and no digest", str(wanted), "give HOST[:PORT]/NAME:TAG")
    with Connection(wanted, "pull,push", mount_from) as connection:
        moved, mounted, total = upload_image(
            connection, functools.partial(layer.blob_path, cache), index, mount_from
        )
        previous = move_tag(connection, wanted.tag, index.document)
    return PushResult(str(wanted), index.digest, total, moved, mounted, previous)


def upload_image(
    connection: Connection, blob: Callable[[str], Path], index: Index, mount_from: str = ""
) -> tuple[int, int, int]:
    """Bring all of an image into the repository by digest, and read it back.

    Returns bytes moved, bytes mounted and bytes of it all.
    """
    sources: dict[str, tuple[int, Path | bytes]] = {}
    for image in index.images:
        sources |= {each.digest: (each.size, blob(each.digest)) for each in image.layers}
    for image in index.images:
        sources[image.config_digest] = (len(image.config), image.config)
    documents = {image.digest: image.manifest for image in index.images} | {
        index.digest: index.document
    }
    total = sum(size for size, _ in sources.values()) + sum(map(len, documents.values()))
    there = dict(
        zip(
            sources,
            connection.map_threads(
                has_blob, [(connection, digest, size) for digest, (size, _) in sources.items()]
            ),
            strict=True,
        )
    )
    missing = [
        (digest, *sources[digest])
        for digest in sorted(sources, key=lambda each: -sources[each][0])
        if not there[digest]
    ]
    with Meter(f"push to {connection.reference}", sum(size for _, size, _ in missing)) as meter:
        arrived = connection.map_threads(
            send_blob, [(connection, *item, mount_from, meter) for item in missing]
        )
    for digest, data in documents.items():
        _put_document(connection, digest, data)
    connection.map_threads(
        _verify_blob, [(connection, digest, *source) for digest, source in sources.items()]
    )
    for digest, data in documents.items():
        _verify_document(connection, digest, data)
    moved = sum(size for (_, size, _), sent in zip(missing, arrived, strict=True) if sent)
    mounted = sum(size for (_, size, _), sent in zip(missing, arrived, strict=True) if not sent)
    return moved + sum(map(len, documents.values())), mounted, total


def move_tag(connection: Connection, name: str, data: bytes) -> str:
    """Let a tag point to a document that is in the repository.

    Returns the digest it pointed to before, or nothing.
    """
    previous = connection.retry(f"asking for the tag {name}", lambda: _read_tag(connection, name))
    if previous != oci_documents.compute_digest(data):
        _put_document(connection, name, data)
    _verify_document(connection, name, data)
    return str(previous)


def _read_tag(connection: Connection, name: str) -> str:
    """Return what a tag points to; empty where it is not there."""
    with connection.request(
        "HEAD",
        connection.url(f"manifests/{name}"),
        (200, 404),
        headers={"Accept": ", ".join(MANIFEST_TYPES)},
        follow=True,
    ) as answer:
        return answer.headers.get("Docker-Content-Digest", "") if answer.status_code == 200 else ""


def _put_document(connection: Connection, name: str, data: bytes) -> None:
    """Put a manifest or index under its digest or a tag."""
    kind, digest = json.loads(data)["mediaType"], oci_documents.compute_digest(data)

    def put() -> None:
        with connection.request(
            "PUT",
            connection.url(f"manifests/{name}"),
            (201,),
            body=lambda: data,
            headers={"Content-Type": kind},
        ) as answer:
            if (said := answer.headers.get("Docker-Content-Digest", digest)) != digest:
                raise TransientError(f"the registry made {redact(said)[:19]}… of it")

    try:
        connection.retry(f"putting {_describe_name(name)}", put)
    except UserError as problem:
        raise UserError(problem.what, problem.where, _NOTHING_TAGGED) from problem


def _verify_blob(connection: Connection, digest: str, size: int, source: Path | bytes) -> None:
    """Is the blob there? A small one is compared."""
    if not has_blob(connection, digest, size):
        raise UserError(
            f"the registry took blob {digest[7:19]}… and has lost it",
            str(connection.reference),
            _NOTHING_TAGGED,
            kind=FAILED,
            value=digest,
        )
    if (
        isinstance(source, bytes)
        and connection.retry(
            f"reading blob {digest[7:19]}… back", lambda: _read_small_blob(connection, digest)
        )
        != source
    ):
        raise UserError(
            f"the registry gives another content for blob {digest[7:19]}…",
            str(connection.reference),
            _NOTHING_TAGGED,
        )


def _read_small_blob(connection: Connection, digest: str) -> bytes:
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


def _verify_document(connection: Connection, name: str, expected: bytes) -> None:
    """Is what the registry gives for `name` this document?"""
    try:
        if read_document(connection, name).data != expected:
            raise UserError(
                f"the registry gives another document for {_describe_name(name)} than it was given",
                str(connection.reference),
            )
    except UserError as problem:
        raise UserError(
            problem.what,
            problem.where,
            "check the tag by hand, then run again" if ":" not in name else _NOTHING_TAGGED,
        ) from problem


def _describe_name(name: str) -> str:
    return f"document {name[7:19]}…" if name.startswith("sha256:") else f"the tag {name}"
