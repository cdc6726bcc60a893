"""What is attached to an image in a registry: one manifest of signatures and one of attestations,
found by OCI referrers and by cosign's tags.

Both carry the image as their `subject`. A registry that answers /v2/NAME/referrers/DIGEST lists
them itself; elsewhere the index under the tag sha256-HEX does, as the OCI distribution
specification has it. cosign looks for the tags sha256-HEX.sig and sha256-HEX.att.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.images.registry import download, image_push
from builder.images.registry.upload import Meter, has_blob, send_blob
from builder.release.publish import registry_listing
from builder.release.publish.signed_statements import ENVELOPE, SIMPLE, Item
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.images.registry.transport import Connection

SIGNATURES = "application/vnd.dev.cosign.artifact.sig.v1+json"
ATTESTATIONS = "application/vnd.dev.cosign.artifact.att.v1+json"
_SUFFIX = {SIGNATURES: "sig", ATTESTATIONS: "att"}
_NONE = (400, 404, 405, 501)  # what registries without the referrers API answer to it
EMPTY = b"{}"
EMPTY_KIND = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class Subject:
    """A document of an image that things are attached to."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return oci_documents.compute_digest(self.data)

    @property
    def tag(self) -> str:
        return f"sha256-{self.digest[7:]}"


def items(connection: Connection, digest: str) -> list[Item]:
    """All signatures and attestations attached to an image, whoever made them; none where nothing
    is attached.
    """
    found: list[dict[str, Any]] = []
    for each in _listed(connection, digest)[0]:
        if each.get("artifactType") in _SUFFIX:
            manifest = download.read_document(connection, str(each.get("digest"))).json()
            if (manifest.get("subject") or {}).get("digest") == digest:
                # An earlier manifest of ours, which a registry that keeps the list goes on to name,
                # holds the same ones.
                found += [
                    layer
                    for layer in _layers(manifest)
                    if layer.get("mediaType") in (SIMPLE, ENVELOPE) and layer not in found
                ]
    return [_item(connection, layer) for layer in found]


def attach(connection: Connection, subject: Subject, added: Iterable[Item]) -> None:
    """Attach what is not attached yet, beside all that is, and read it back.

    Raises UserError; nothing that was there is lost then.
    """
    new = list(added)
    manifests = []
    for artifact, suffix in _SUFFIX.items():
        wanted = [each for each in new if (each.media_type == SIMPLE) is (artifact == SIGNATURES)]
        if wanted:
            manifests.append(
                _manifest(connection, subject, artifact, f"{subject.tag}.{suffix}", wanted)
            )
    if not manifests:
        return
    listed, by_registry = _listed(connection, subject.digest)
    if (
        not {each["digest"] for each in manifests} <= {str(each.get("digest")) for each in listed}
        and not by_registry
    ):
        kinds = {each["artifactType"] for each in manifests}
        kept = [
            each for each in listed if each.get("artifactType") not in kinds
        ]  # ours hold all that the earlier ones did
        image_push.move_tag(
            connection,
            subject.tag,
            oci_documents.encode_json(
                {
                    "schemaVersion": 2,
                    "mediaType": oci_documents.INDEX,
                    "manifests": [*kept, *manifests],
                }
            ),
        )
        listed = _listed(connection, subject.digest)[0]
    if missing := {each["digest"] for each in manifests} - {
        str(each.get("digest")) for each in listed
    }:
        lost = ", ".join(f"{each[7:19]}…" for each in sorted(missing))
        raise UserError(
            f"what was attached to {subject.digest[7:19]}… is not listed: {lost}",
            str(connection.reference),
            "another publisher may be at work: run again",
            kind=CONFLICT,
        )


def known(connection: Connection, name: str) -> download.Document | None:
    """Return the manifest or index of a tag or digest; None where there is none."""

    def ask() -> bool:
        with connection.request(
            "HEAD",
            connection.url(f"manifests/{name}"),
            (200, 404),
            headers={"Accept": ", ".join(download.MANIFEST_TYPES)},
            follow=True,
        ) as answer:
            return answer.status_code == 200

    return (
        download.read_document(connection, name)
        if connection.retry(f"asking for {name[:26]}", ask)
        else None
    )


def small(connection: Connection, digest: str) -> bytes:
    """Return a small blob as the registry gives it; whoever uses it checks it, by its hash or its
    signature.
    """

    def get() -> bytes:
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

    found: bytes = connection.retry(f"reading blob {digest[7:19]}…", get)
    return found


def _listed(connection: Connection, digest: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the descriptors of what refers to an image, and whether the registry keeps the list
    itself.
    """
    found = registry_listing.rows(
        connection, f"referrers/{digest}", "manifests", absent=_NONE, kind=oci_documents.INDEX
    )
    by_registry = found is not None
    if found is None:
        tagged = known(connection, f"sha256-{digest[7:]}")
        found = registry_listing.read(connection, tagged.data, "manifests") if tagged else []
    return [each for each in found if isinstance(each, dict)], by_registry


def _manifest(
    connection: Connection, subject: Subject, artifact: str, tag: str, wanted: Sequence[Item]
) -> dict[str, Any]:
    """Put the manifest of one kind, with all that the earlier one had; returns what an index says
    of it.
    """
    earlier = known(connection, tag)
    layers = _layers(earlier.json()) if earlier else []
    layers += [
        each.descriptor for each in wanted if each.descriptor not in layers
    ]  # two keys' signatures of one payload are one blob
    blobs = {
        oci_documents.compute_digest(each): each
        for each in (EMPTY, *(item.data for item in wanted))
    }
    with Meter(f"attach to {subject.digest[7:19]}…", 0) as meter:
        for digest, data in blobs.items():
            if not has_blob(connection, digest, len(data)):
                send_blob(connection, digest, len(data), data, "", meter)
    document = oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.MANIFEST,
            "artifactType": artifact,
            "config": oci_documents.make_descriptor(EMPTY_KIND, EMPTY),
            "layers": layers,
            "subject": oci_documents.make_descriptor(subject.media_type, subject.data),
        }
    )
    image_push.move_tag(connection, tag, document)  # which puts it under its digest too
    return {
        **oci_documents.make_descriptor(oci_documents.MANIFEST, document),
        "artifactType": artifact,
    }


def _item(connection: Connection, layer: dict[str, Any]) -> Item:
    annotations = layer.get("annotations")
    noted = (
        {str(key): str(value) for key, value in annotations.items()}
        if isinstance(annotations, dict)
        else {}
    )
    return Item(str(layer.get("mediaType")), small(connection, str(layer.get("digest"))), noted)


def _layers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found = manifest.get("layers")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
