"""Publish an image: everything by digest first, signed and read back; only then do tags move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.oci import oci_documents
from builder.images.registry import download, image_push
from builder.images.registry.transport import Connection
from builder.release.publish import (
    attachments,
    provenance,
    sbom,
    signed_releases,
    signed_statements,
    tags,
    verification,
)
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.images.oci.reference import Reference
    from builder.release.publish.platform_images import Release
    from builder.release.publish.signed_statements import Item
    from builder.release.publish.signing_key import Private

Described = dict[str, "list[tuple[str, dict[str, Any]]]"]


@dataclass(frozen=True)
class Asked:
    """Where to, which day, and which tags follow the nightly one."""

    repository: Reference
    date: str
    tags: tuple[str, ...]
    digest: str = ""


def describe(
    made: Release, repository: Reference, checkout: Mapping[str, Any], builder: str
) -> Described:
    """Return the predicates to attach, by the digest they are of: an SBOM and a provenance for each
    platform's image and for the index.
    """
    parts = {
        name: sbom.contents(made.manifest, record, checkout, made.licences[name])
        for name, record in made.records.items()
    }
    version = str(next(iter(made.records.values()))["builder"])

    def both(digest: str, records: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        listed = sbom.document(str(repository), version, digest, [parts[each] for each in records])
        return [
            (signed_statements.SBOM, listed),
            (signed_statements.PROVENANCE, provenance.predicate(records, checkout, builder)),
        ]

    found = {
        image.digest: both(image.digest, {image.architecture: made.records[image.architecture]})
        for image in made.index.images
    }
    return found | {made.index.digest: both(made.index.digest, made.records)}


def publish(
    connection: Connection,
    made: Release,
    asked: Asked,
    described: Described,
    signer: Private,
    withdrawn: str,
) -> dict[str, Any]:
    """Publish all of it, in the order in which nothing half can be seen; return what was done."""
    index = made.index
    previous = _refuse_mixed(connection, asked, made.title)
    moved, _, total = image_push.upload_image(connection, made.blob, index)
    subjects = [
        *(attachments.Subject(oci_documents.MANIFEST, image.manifest) for image in index.images),
        attachments.Subject(oci_documents.INDEX, index.document),
    ]
    for subject in subjects:
        sign(connection, subject, described[subject.digest], signer)
    read_back = download.read_document(connection, index.digest)
    checked(connection, read_back, signer)
    if withdrawn:
        tags.withdraw(connection, asked.date, withdrawn)
    position = tags.Position(asked.date)
    tags.own(
        connection,
        asked.date,
        index.document,
        lambda: signed_releases.sign_release(
            connection, read_back, position, [position.tag], signer
        ),
    )
    done, held = [tags.nightly(asked.date)], []
    today = tags.read_today()
    later = max(tags.newest(connection, today), asked.date)
    for name in asked.tags:
        if name == "latest" and later > asked.date:
            held.append(name)
            log.warn(
                f"latest stays: {tags.nightly(later)} is newer than "
                f"{tags.nightly(asked.date)} (to go back: --tag latest --digest "
                f"{index.digest})"
            )
        else:
            done.append(name)
    signed_releases.move_tags(connection, read_back, done[1:], signer, today)
    signed_releases.check_tags(
        connection,
        read_back,
        done[:1],
        verification.attached(connection, index.digest, signer.public),
        signer.public,
    )
    return {
        "repository": str(asked.repository),
        "digest": index.digest,
        "title": made.title,
        "date": asked.date,
        "tags": done,
        "held": held,
        "previous": previous,
        "moved": moved,
        "total": total,
        "images": [
            {"platform": f"linux/{image.architecture}", "digest": image.digest}
            for image in index.images
        ],
    }


def sign(
    connection: Connection,
    subject: attachments.Subject,
    predicates: Sequence[tuple[str, dict[str, Any]]],
    signer: Private,
) -> None:
    """Attach a signature and these statements, but for what this key has signed before."""
    known = verification.attached(connection, subject.digest, signer.public).said
    repository = connection.reference.repository
    added: list[Item] = (
        []
        if known.get("signature")
        else [signed_statements.signature(signer, repository, subject.digest)]
    )
    added += [
        signed_statements.attestation(signer, repository, subject.digest, kind, said)
        for kind, said in predicates
        if kind == signed_statements.TEST or not known.get(kind)
    ]
    attachments.attach(connection, subject, added)


def checked(
    connection: Connection, index: download.Document, signer: Private, *, tested: bool = False
) -> None:
    """Read it all back, as anyone with the public key can; UserError before any tag is touched."""
    found = verification.verdict(connection, index, signer.public, blobs=False, tested=tested)
    if not found.ok:
        raise UserError(
            found.first(),
            f"{connection.reference.host}/{connection.reference.name}@{index.digest}",
            "no tag was moved; publish it anew with this key"
            + (", and promote it" if tested else ""),
        )


def _refuse_mixed(connection: Connection, asked: Asked, title: str) -> dict[str, str]:
    """Return what the tags point to now.

    UserError where the repository holds another distribution or accelerator.
    """
    previous = {}
    for name in asked.tags:
        there = attachments.known(connection, name)
        if there is None:
            continue
        previous[name] = there.digest
        other = (there.json().get("annotations") or {}).get("org.opencontainers.image.title", title)
        if other != title:
            raise UserError(
                f"{name} is {other} there, and this is {title}",
                str(asked.repository),
                "give each distribution and accelerator a repository of its own",
                kind=CONFLICT,
                value=other,
            )
    return previous


def restore(asked: Asked, signer: Private, *, tested: bool, dry_run: bool) -> dict[str, Any]:
    """Move tags to what was published before, if it is still whole."""
    with Connection(asked.repository, "pull" if dry_run else "pull,push") as connection:
        index = download.read_document(connection, asked.digest)
        checked(connection, index, signer, tested=tested)
        there = {name: attachments.known(connection, name) for name in asked.tags}
        if not dry_run:
            signed_releases.move_tags(connection, index, asked.tags, signer, tags.read_today())
    previous = {name: found.digest for name, found in there.items() if found}
    return {
        "repository": str(asked.repository),
        "digest": asked.digest,
        "tags": list(asked.tags),
        "previous": previous,
    }
