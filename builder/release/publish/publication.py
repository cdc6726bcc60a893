"""Publish an image: upload, sign and read back everything by digest, then move tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images import image_settings
from builder.images.oci import oci_documents
from builder.images.registry import download, image_push
from builder.images.registry.transport import Connection
from builder.release.publish import (
    attachments,
    image_variants,
    provenance,
    sbom,
    signed_releases,
    signed_statements,
    tags,
    verification,
)
from rosetta.core.errors import CONFLICT, EXISTS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.images.oci.reference import Reference
    from builder.release.publish.platform_images import PublishableIndex
    from builder.release.publish.signed_statements import Attachment
    from builder.release.publish.signing_key import PrivateKey

# The type and the content of each statement.
Predicates = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class PublicationRequest:
    """Where an image is published.

    Attributes:
        repository: The repository.
        date: The day of the nightly tag.
        tags: The tags that move after the nightly tag, without the suffix of the variant.
        digest: The published image that the tags move to, or "" for a new image.
        withdraw: The digest of a publisher that will not come back, whose claims on the day are
            withdrawn; or "".
        version: The version whose release this is, or "" for a nightly image. A release gets no
            nightly tag. The first of its tags is that of the version, and never moves.
    """

    repository: Reference
    date: str
    tags: tuple[str, ...]
    digest: str = ""
    withdraw: str = ""
    version: str = ""


def make_predicates(
    image: PublishableIndex, repository: Reference, checkout: Mapping[str, Any], builder: str
) -> dict[str, Predicates]:
    """Return the SBOM and the provenance of each platform's image and of the index.

    Args:
        image: The image to publish.
        repository: The repository.
        checkout: What `checkout.describe_checkout` returned.
        builder: The URI of the builder.

    Returns:
        The statements, by the digest that they are about.
    """
    contents = {
        architecture: sbom.list_contents(
            image.manifest, record, checkout, image.licences[architecture]
        )
        for architecture, record in image.records.items()
    }
    version = str(next(iter(image.records.values()))["builder"])

    def predicates_of(digest: str, architectures: Sequence[str]) -> Predicates:
        records = {name: image.records[name] for name in architectures}
        document = sbom.make_document(
            str(repository), version, digest, [contents[name] for name in architectures]
        )
        return [
            (signed_statements.SBOM, document),
            (signed_statements.PROVENANCE, provenance.make_predicate(records, checkout, builder)),
        ]

    predicates = {
        platform.digest: predicates_of(platform.digest, [platform.architecture])
        for platform in image.index.images
    }
    predicates[image.index.digest] = predicates_of(image.index.digest, list(image.records))
    return predicates


def publish_image(
    connection: Connection,
    image: PublishableIndex,
    request: PublicationRequest,
    predicates: Mapping[str, Predicates],
    key: PrivateKey,
) -> dict[str, Any]:
    """Upload an image, sign it, and move tags to it, in an order that never shows half of it.

    Args:
        connection: The connection to the repository.
        image: The image.
        request: The day and the tags.
        predicates: What `make_predicates` returned.
        key: The key to sign with.

    Returns:
        The result for `--json`.
    """
    index = image.index
    suffix = image_variants.find_suffix(image.accelerator)
    names = [image_variants.add_suffix(name, suffix) for name in request.tags]
    position = tags.Position(request.date, suffix=suffix)
    previous = _read_previous_tags(connection, names, image.distribution)
    if request.version:
        _refuse_other_release(connection, names[0], previous, index.digest)
    moved, _, total = image_push.upload_image(connection, image.blob_path, index)
    _sign_index(connection, image, predicates, key)
    document = download.read_document(connection, index.digest)
    check_publication(connection, document, key)
    if request.withdraw:
        tags.withdraw_claims(connection, position, request.withdraw)
    own_tags = [] if request.version else [position.tag]
    if own_tags:
        _put_nightly_tag(connection, position, document, key)
    today = tags.read_today()
    to_move, held = _choose_tags(connection, position, names, index.digest, today)
    signed_releases.move_tags(connection, document, to_move, key, today)
    if own_tags:
        reader = signed_releases.ReleaseReader(connection, key.public)
        signed_releases.check_tags(reader, document, own_tags, reader.read_statements(index.digest))
    return {
        "repository": str(request.repository),
        "digest": index.digest,
        "title": image.title,
        "date": request.date,
        "tags": [*own_tags, *to_move],
        "held": held,
        "previous": previous,
        "moved": moved,
        "total": total,
        "images": [
            {"platform": f"linux/{platform.architecture}", "digest": platform.digest}
            for platform in index.images
        ],
    }


def _sign_index(
    connection: Connection,
    image: PublishableIndex,
    predicates: Mapping[str, Predicates],
    key: PrivateKey,
) -> None:
    """Attach a signature and the statements to each platform's image and to the index."""
    subjects = [
        attachments.Subject(oci_documents.MANIFEST, platform.manifest)
        for platform in image.index.images
    ]
    subjects.append(attachments.Subject(oci_documents.INDEX, image.index.document))
    for subject in subjects:
        sign_document(connection, subject, predicates[subject.digest], key)


def _put_nightly_tag(
    connection: Connection, position: tags.Position, index: download.Document, key: PrivateKey
) -> None:
    """Put the nightly tag, after a signed release at its position is attached."""

    def sign_release() -> None:
        signed_releases.sign_release(connection, index, position, [position.tag], key)

    tags.put_nightly_tag(connection, position, index.data, sign_release)


def _refuse_other_release(
    connection: Connection, tag: str, previous: Mapping[str, str], digest: str
) -> None:
    """Raise UserError if the tag of a version is another image already."""
    published = previous.get(tag, digest)
    if published != digest:
        raise UserError(
            f"{tag} is already {published[:19]}…, and never moves",
            str(connection.reference),
            "release a new version",
            kind=EXISTS,
            value=tag,
        )


def _choose_tags(
    connection: Connection, position: tags.Position, names: Sequence[str], digest: str, today: str
) -> tuple[list[str], list[str]]:
    """Return the tags to move, and those that stay. `latest` stays if a newer nightly exists."""
    newest = tags.Position(
        tags.find_newest_nightly(connection, position.suffix, today), suffix=position.suffix
    )
    to_move, held = [], []
    for name in names:
        if name == f"latest{position.suffix}" and newest > position:
            held.append(name)
            log.warn(
                f"{name} stays: {newest.tag} is newer than {position.tag} "
                f"(to go back: --tag {name} --digest {digest})"
            )
        else:
            to_move.append(name)
    return to_move, held


def sign_document(
    connection: Connection,
    subject: attachments.Subject,
    predicates: Predicates,
    key: PrivateKey,
) -> None:
    """Attach a signature and statements to an image, unless the key has signed them before.

    A test result is always attached.
    """
    trusted = verification.read_trusted_statements(
        connection, subject.digest, key.public, all_forms=True
    )
    repository, digest = connection.reference.repository, subject.digest
    signed = [(verification.SIGNATURE, signed_statements.sign_image(key, repository, digest))]
    for predicate_type, predicate in predicates:
        forms = signed_statements.sign_statement(key, repository, digest, predicate_type, predicate)
        signed.append((predicate_type, forms))
    added: list[Attachment] = []
    for predicate_type, forms in signed:
        known = trusted.media_types.get(predicate_type, set())
        if predicate_type == signed_statements.TEST:
            known = set()
        added += [attachment for attachment in forms if attachment.media_type not in known]
    attachments.attach(connection, subject, added)


def check_publication(
    connection: Connection,
    index: download.Document,
    key: PrivateKey,
    *,
    require_test: bool = False,
) -> None:
    """Verify a published image, as anyone with the public key can.

    Args:
        connection: The connection to the repository.
        index: The index.
        key: The key that must have signed everything.
        require_test: Whether a signed test result that has passed is required.

    Raises:
        UserError: the image does not verify.
    """
    options = verification.VerificationOptions(read_blobs=False, require_test=require_test)
    result = verification.verify_image(connection, index, key.public, options)
    if not result.ok:
        promote = ", and promote it" if require_test else ""
        raise UserError(
            result.describe_first_problem(),
            f"{connection.reference.host}/{connection.reference.name}@{index.digest}",
            f"no tag was moved; publish the image again with this key{promote}",
        )


def read_accelerator(index: download.Document) -> str:
    """Return the accelerator that the annotations of a published index name.

    Raises:
        UserError: the annotations do not name an accelerator.
    """
    annotations = index.json().get("annotations") or {}
    accelerator = annotations.get(image_settings.ACCELERATOR)
    if not isinstance(accelerator, str) or not accelerator:
        raise UserError(
            f"has no annotation {image_settings.ACCELERATOR}, so the suffix of its tags is unknown",
            index.digest,
            "publish the image again with this version of rosetta",
            kind=MISSING,
            value=image_settings.ACCELERATOR,
        )
    return accelerator


def _read_previous_tags(
    connection: Connection, names: Sequence[str], distribution: str
) -> dict[str, str]:
    """Return the digests that the tags point to now.

    Raises:
        UserError: the repository has images of another distribution.
    """
    previous = {}
    for name in names:
        document = attachments.find_document(connection, name)
        if document is None:
            continue
        previous[name] = document.digest
        annotations = document.json().get("annotations") or {}
        other = annotations.get(image_settings.DISTRIBUTION, distribution)
        if other != distribution:
            raise UserError(
                f"{name} is an image of {other} there, and this is one of {distribution}",
                connection.reference.repository,
                "give each distribution a repository of its own",
                kind=CONFLICT,
                value=other,
            )
    return previous


def move_tags_back(
    request: PublicationRequest, key: PrivateKey, *, require_test: bool, dry_run: bool
) -> dict[str, Any]:
    """Move tags to an image that was published before, if it verifies.

    Args:
        request: The repository, the tags and the digest of the image.
        key: The key that must have signed everything, and that signs the move.
        require_test: Whether a signed test result that has passed is required.
        dry_run: Whether no tag is moved.

    Returns:
        The result for `--json`.
    """
    with Connection(request.repository, "pull" if dry_run else "pull,push") as connection:
        index = download.read_document(connection, request.digest)
        check_publication(connection, index, key, require_test=require_test)
        suffix = image_variants.find_suffix(read_accelerator(index))
        names = [image_variants.add_suffix(name, suffix) for name in request.tags]
        documents = {name: attachments.find_document(connection, name) for name in names}
        if not dry_run:
            signed_releases.move_tags(connection, index, names, key, tags.read_today())
    return {
        "repository": str(request.repository),
        "digest": request.digest,
        "tags": names,
        "previous": {name: document.digest for name, document in documents.items() if document},
    }
