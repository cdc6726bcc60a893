"""Attach signatures and signed statements to an image in a registry, and read them.

One manifest has the signatures, another one the statements. Both name the image as their
`subject`, so that a registry with the referrers API (/v2/NAME/referrers/DIGEST) lists them. For
other registries, the OCI distribution specification defines an index under the tag sha256-HEX.
cosign looks for the tags sha256-HEX.sig and sha256-HEX.att.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.images.registry import download, image_push
from builder.images.registry.upload import Meter, has_blob, send_blob
from builder.release.publish import registry_listing
from builder.release.publish.signed_statements import ENVELOPE, SIMPLE, Attachment
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.images.registry.transport import Connection

    Descriptor = dict[str, Any]

SIGNATURES = "application/vnd.dev.cosign.artifact.sig.v1+json"
ATTESTATIONS = "application/vnd.dev.cosign.artifact.att.v1+json"
_TAG_SUFFIXES = {SIGNATURES: "sig", ATTESTATIONS: "att"}
_NO_REFERRERS_API = (400, 404, 405, 501)  # the statuses of registries without it
EMPTY = b"{}"
EMPTY_KIND = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class Subject:
    """A manifest or an index that something is attached to."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        """The digest of the document."""
        return oci_documents.compute_digest(self.data)

    @property
    def tag(self) -> str:
        """The tag of the index of attachments, for registries without the referrers API."""
        return f"sha256-{self.digest[7:]}"


def read_attachments(connection: Connection, digest: str) -> list[Attachment]:
    """Return all signatures and statements that anyone attached to an image."""
    layers: list[Descriptor] = []
    for referrer in _list_referrers(connection, digest)[0]:
        if referrer.get("artifactType") not in _TAG_SUFFIXES:
            continue
        manifest = download.read_document(connection, str(referrer.get("digest"))).json()
        if (manifest.get("subject") or {}).get("digest") != digest:
            continue
        # A registry with the referrers API also lists our earlier manifests, whose attachments
        # the later ones have as well.
        layers += [
            layer
            for layer in _list_layers(manifest)
            if layer.get("mediaType") in (SIMPLE, ENVELOPE) and layer not in layers
        ]
    return [_read_attachment(connection, layer) for layer in layers]


def attach(connection: Connection, subject: Subject, added: Iterable[Attachment]) -> None:
    """Attach signatures and statements to an image, beside what is attached already.

    Raises:
        UserError: the attachments are not listed afterwards. Nothing is lost then.
    """
    manifests = _put_manifests(connection, subject, list(added))
    if not manifests:
        return
    new_digests = {manifest["digest"] for manifest in manifests}
    referrers, has_api = _list_referrers(connection, subject.digest)
    if not new_digests <= _digests_of(referrers) and not has_api:
        _put_referrers_index(connection, subject, referrers, manifests)
        referrers, _ = _list_referrers(connection, subject.digest)
    missing = new_digests - _digests_of(referrers)
    if missing:
        shown = ", ".join(f"{digest[7:19]}…" for digest in sorted(missing))
        raise UserError(
            f"what was attached to {subject.digest[7:19]}… is not listed: {shown}",
            str(connection.reference),
            "another publisher may be at work: run again",
            kind=CONFLICT,
        )


def _digests_of(descriptors: Iterable[Descriptor]) -> set[str]:
    return {str(descriptor.get("digest")) for descriptor in descriptors}


def _put_manifests(
    connection: Connection, subject: Subject, added: Sequence[Attachment]
) -> list[Descriptor]:
    """Put the manifest of signatures and that of statements, and return their descriptors."""
    manifests = []
    for artifact_type in _TAG_SUFFIXES:
        attachments = [
            attachment
            for attachment in added
            if (attachment.media_type == SIMPLE) is (artifact_type == SIGNATURES)
        ]
        if attachments:
            manifests.append(_put_manifest(connection, subject, artifact_type, attachments))
    return manifests


def _put_manifest(
    connection: Connection,
    subject: Subject,
    artifact_type: str,
    attachments: Sequence[Attachment],
) -> Descriptor:
    """Put a manifest with attachments of one kind and those of the earlier manifest.

    Returns:
        The descriptor of the manifest.
    """
    tag = f"{subject.tag}.{_TAG_SUFFIXES[artifact_type]}"
    earlier = find_document(connection, tag)
    layers = _list_layers(earlier.json()) if earlier else []
    layers += [
        attachment.descriptor for attachment in attachments if attachment.descriptor not in layers
    ]
    # The signatures of one payload by two keys are one blob.
    blobs = {
        oci_documents.compute_digest(data): data
        for data in (EMPTY, *(attachment.data for attachment in attachments))
    }
    with Meter(f"attach to {subject.digest[7:19]}…", 0) as meter:
        for digest, data in blobs.items():
            if not has_blob(connection, digest, len(data)):
                send_blob(connection, digest, len(data), data, "", meter)
    manifest = oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.MANIFEST,
            "artifactType": artifact_type,
            "config": oci_documents.make_descriptor(EMPTY_KIND, EMPTY),
            "layers": layers,
            "subject": oci_documents.make_descriptor(subject.media_type, subject.data),
        }
    )
    image_push.move_tag(connection, tag, manifest)  # this also puts the manifest under its digest
    descriptor = oci_documents.make_descriptor(oci_documents.MANIFEST, manifest)
    return {**descriptor, "artifactType": artifact_type}


def _put_referrers_index(
    connection: Connection,
    subject: Subject,
    referrers: Iterable[Descriptor],
    manifests: Sequence[Descriptor],
) -> None:
    """Put the index of attachments, for a registry without the referrers API.

    Args:
        connection: The connection to the repository.
        subject: The image.
        referrers: What the index lists now.
        manifests: The new manifests, which have everything that the earlier ones had.
    """
    replaced_types = {manifest["artifactType"] for manifest in manifests}
    others = [
        referrer for referrer in referrers if referrer.get("artifactType") not in replaced_types
    ]
    index = {
        "schemaVersion": 2,
        "mediaType": oci_documents.INDEX,
        "manifests": [*others, *manifests],
    }
    image_push.move_tag(connection, subject.tag, oci_documents.encode_json(index))


def find_document(connection: Connection, name: str) -> download.Document | None:
    """Return the manifest or index with a tag or digest, or None if there is none."""

    def exists() -> bool:
        with connection.request(
            "HEAD",
            connection.url(f"manifests/{name}"),
            (200, 404),
            headers={"Accept": ", ".join(download.DOCUMENT_TYPES)},
            follow=True,
        ) as response:
            return response.status_code == 200

    if not connection.retry(f"asking for {name[:26]}", exists):
        return None
    return download.read_document(connection, name)


def _list_referrers(connection: Connection, digest: str) -> tuple[list[Descriptor], bool]:
    """Return the descriptors of what refers to an image.

    Returns:
        The descriptors, and whether the registry has the referrers API.
    """
    referrers = registry_listing.read_list(
        connection,
        f"referrers/{digest}",
        "manifests",
        absent_statuses=_NO_REFERRERS_API,
        media_type=oci_documents.INDEX,
    )
    has_api = referrers is not None
    if referrers is None:
        index = find_document(connection, f"sha256-{digest[7:]}")
        referrers = (
            registry_listing.parse_list(connection, index.data, "manifests") if index else []
        )
    return [referrer for referrer in referrers if isinstance(referrer, dict)], has_api


def _read_attachment(connection: Connection, layer: Descriptor) -> Attachment:
    annotations = layer.get("annotations")
    if not isinstance(annotations, dict):
        annotations = {}
    return Attachment(
        str(layer.get("mediaType")),
        download.read_small_blob(connection, str(layer.get("digest"))),
        {str(key): str(value) for key, value in annotations.items()},
    )


def _list_layers(manifest: dict[str, Any]) -> list[Descriptor]:
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        return []
    return [layer for layer in layers if isinstance(layer, dict)]
