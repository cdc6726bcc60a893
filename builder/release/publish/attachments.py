"""Attach signatures and signed statements to an image in a registry, and read them.

One manifest has the signatures, another one the statements, and each bundle has a manifest of its
own. All of them name the image as their `subject`, so that a registry with the referrers API
(/v2/NAME/referrers/DIGEST) lists them. For other registries, the OCI distribution specification
defines an index under the tag sha256-HEX. cosign 2 looks for the tags sha256-HEX.sig and
sha256-HEX.att. cosign 3 first looks for bundles among what refers to the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.images.registry import download, image_push
from builder.images.registry.upload import Meter, has_blob, send_blob
from builder.release.publish import registry_listing
from builder.release.publish.signed_statements import ENVELOPE, SIMPLE, Attachment
from builder.release.publish.sigstore_bundle import BUNDLE, PREDICATE_TYPE
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from builder.images.registry.transport import Connection

    Descriptor = dict[str, Any]

SIGNATURES = "application/vnd.dev.cosign.artifact.sig.v1+json"
ATTESTATIONS = "application/vnd.dev.cosign.artifact.att.v1+json"
_TAG_SUFFIXES = {SIGNATURES: "sig", ATTESTATIONS: "att"}
_ARTIFACT_TYPES = {SIMPLE: SIGNATURES, ENVELOPE: ATTESTATIONS}  # of attachments that share one
_NO_REFERRERS_API = (400, 404, 405, 501)  # the statuses of registries without it
EMPTY = b"{}"
EMPTY_KIND = "application/vnd.oci.empty.v1+json"
# cosign 3 lists its bundles with the type of their empty config, where it writes the index itself.
_READ_TYPES = (SIGNATURES, ATTESTATIONS, BUNDLE, EMPTY_KIND)


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
    """Return all signatures, statements and bundles that anyone attached to an image."""
    return list(iterate_attachments(connection, digest, lambda _: True))


def iterate_attachments(
    connection: Connection, digest: str, is_bundle_needed: Callable[[str], bool]
) -> Iterator[Attachment]:
    """Yield all signatures and statements that anyone attached to an image, and then the bundles.

    Args:
        connection: The connection to the repository.
        digest: The digest of the image.
        is_bundle_needed: Whether to read a bundle with a statement of this type, as the list of
            bundles names it. The function is called just before the bundle would be read.
    """
    referrers = [
        referrer
        for referrer in _list_referrers(connection, digest)[0]
        if referrer.get("artifactType") in _READ_TYPES
    ]
    yielded: list[Descriptor] = []
    for referrer in sorted(referrers, key=lambda each: each["artifactType"] not in _TAG_SUFFIXES):
        predicate_type = (referrer.get("annotations") or {}).get(PREDICATE_TYPE)
        if predicate_type and not is_bundle_needed(str(predicate_type)):
            continue
        manifest = download.read_document(connection, str(referrer.get("digest"))).json()
        if (manifest.get("subject") or {}).get("digest") != digest:
            continue
        # A registry with the referrers API also lists our earlier manifests, whose attachments
        # the later ones have as well.
        for layer in _list_attached_layers(manifest):
            if layer not in yielded:
                yielded.append(layer)
                yield _read_attachment(connection, layer)


def _list_attached_layers(manifest: dict[str, Any]) -> list[Descriptor]:
    """Return the layers of a manifest that are attachments, with their annotations.

    The annotations of a bundle are those of its manifest.
    """
    layers = _list_layers(manifest)
    if manifest.get("artifactType") == BUNDLE:
        annotations = manifest.get("annotations")
        return [
            {**layer, "annotations": annotations}
            for layer in layers
            if layer.get("mediaType") == BUNDLE
        ]
    return [layer for layer in layers if layer.get("mediaType") in _ARTIFACT_TYPES]


def attach(connection: Connection, subject: Subject, added: Iterable[Attachment]) -> None:
    """Attach signatures, statements and bundles to an image, beside what is attached already.

    Raises:
        UserError: the attachments are not listed afterwards. Nothing is lost then.
    """
    attachments = list(added)
    if not attachments:
        return
    _send_blobs(connection, subject, attachments)
    manifests = _put_manifests(connection, subject, attachments)
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
    """Put all manifests with attachments, and return their descriptors."""
    manifests = []
    for artifact_type in _TAG_SUFFIXES:
        attachments = [
            attachment
            for attachment in added
            if _ARTIFACT_TYPES.get(attachment.media_type) == artifact_type
        ]
        if attachments:
            manifests.append(_put_shared_manifest(connection, subject, artifact_type, attachments))
    bundles = [attachment for attachment in added if attachment.media_type == BUNDLE]
    return manifests + [_put_bundle(connection, subject, bundle) for bundle in bundles]


def _put_shared_manifest(
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
    manifest = _make_manifest(subject, artifact_type, layers)
    # Putting the manifest under its tag also puts the manifest under its digest.
    image_push.move_tag(connection, tag, oci_documents.encode_json(manifest))
    return _describe_manifest(manifest)


def _put_bundle(connection: Connection, subject: Subject, bundle: Attachment) -> Descriptor:
    """Put the manifest of one bundle, which has no tag, and return its descriptor."""
    layer = oci_documents.make_descriptor(BUNDLE, bundle.data)
    annotations = dict(bundle.annotations)
    manifest = {**_make_manifest(subject, BUNDLE, [layer]), "annotations": annotations}
    descriptor = _describe_manifest(manifest)
    image_push.put_document(connection, descriptor["digest"], oci_documents.encode_json(manifest))
    return {**descriptor, "annotations": annotations}


def _send_blobs(
    connection: Connection, subject: Subject, attachments: Sequence[Attachment]
) -> None:
    """Upload the blobs of attachments, and the empty config of their manifests."""
    # The signatures of one payload by two keys are one blob.
    blobs = {
        oci_documents.compute_digest(data): data
        for data in (EMPTY, *(attachment.data for attachment in attachments))
    }
    with Meter(f"attach to {subject.digest[7:19]}…", 0) as meter:
        for digest, data in blobs.items():
            if not has_blob(connection, digest, len(data)):
                send_blob(connection, digest, len(data), data, "", meter)


def _make_manifest(
    subject: Subject, artifact_type: str, layers: Sequence[Descriptor]
) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": oci_documents.MANIFEST,
        "artifactType": artifact_type,
        "config": oci_documents.make_descriptor(EMPTY_KIND, EMPTY),
        "layers": list(layers),
        "subject": oci_documents.make_descriptor(subject.media_type, subject.data),
    }


def _describe_manifest(manifest: dict[str, Any]) -> Descriptor:
    """Return the descriptor of a manifest, as a list of what refers to an image has it."""
    data = oci_documents.encode_json(manifest)
    descriptor = oci_documents.make_descriptor(oci_documents.MANIFEST, data)
    return {**descriptor, "artifactType": manifest["artifactType"]}


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
        manifests: The new manifests. Those of signatures and of statements have everything that
            the earlier ones had.
    """
    replaced_types = {manifest["artifactType"] for manifest in manifests} - {BUNDLE}
    new_digests = _digests_of(manifests)
    others = [
        referrer
        for referrer in referrers
        if referrer.get("artifactType") not in replaced_types
        and str(referrer.get("digest")) not in new_digests
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
