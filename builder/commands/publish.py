"""Publish an image: everything by digest first, with SBOM, provenance and signature, read back;
only then do tags move.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.commands import image_options
from builder.core import log
from builder.core.command_context import Context, Result
from builder.images.oci import oci_documents, reference
from builder.images.registry import download, registry
from builder.images.registry.transport import Connection
from builder.images.registry.upload import megabytes
from builder.release.publish import (
    attachments,
    platform_images,
    provenance,
    sbom,
    signed_releases,
    signed_statements,
    signing_key,
    tags,
    verification,
)
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from builder.images.oci.reference import Reference
    from builder.release.publish.platform_images import Release
    from builder.release.publish.signed_statements import Item
    from builder.release.publish.signing_key import Private

_RESERVED = re.compile(r"nightly-.*|moved-.*|claim-.*|sha256-.*")


@dataclass(frozen=True)
class Asked:
    """Where to, which day, and which tags follow the nightly one."""

    repository: Reference
    date: str
    tags: tuple[str, ...]
    digest: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="DISTRIBUTION|oci:DIR",
        help=(
            "what to build and publish, or the image layout that has it; several layouts, each "
            "with some architectures, are joined"
        ),
    )
    parser.add_argument(
        "--to",
        metavar="HOST/NAMESPACE/NAME",
        required=True,
        help="the repository: one for each distribution and accelerator",
    )
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        default="",
        help="the private key to sign with (PEM, ECDSA P-256)",
    )
    parser.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        default="",
        help="the day of the nightly tag (default: today, UTC)",
    )
    parser.add_argument(
        "--tag",
        metavar="NAME",
        action="append",
        default=[],
        help="move this tag too, after the nightly one (may be repeated; default: latest)",
    )
    parser.add_argument(
        "--digest",
        metavar="sha256:HEX",
        default="",
        help=(
            "bring an image back that is published already: move the tags of --tag to it, and "
            "nothing else"
        ),
    )
    parser.add_argument(
        "--tested",
        action="store_true",
        help=(
            "with --digest: only if a passed test of it is signed by this key, as promote signs one"
        ),
    )
    parser.add_argument(
        "--withdraw",
        metavar="sha256:HEX",
        default="",
        help="first take back the claim on the day of a publisher that is gone for good",
    )
    parser.add_argument(
        "--builder-id",
        metavar="URI",
        default=provenance.BUILDER,
        help=f"who builds, for the provenance (default: {provenance.BUILDER})",
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=["cpu", "cuda12", "cuda13"],
        help="of the distribution (default: cpu)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build and describe, and say what would go where; nothing is sent",
    )
    image_options.add_arguments(parser)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    asked = _asked(arguments)
    if context.offline:
        raise UserError("a registry cannot be reached with --offline", "publish", "leave it out")
    if not arguments.key and not arguments.dry_run:
        raise UserError(
            "needs a key to sign with",
            "publish",
            "give --key FILE (docs/publish.md says how to make one)",
        )
    signer = signing_key.private(arguments.key) if arguments.key else None
    if asked.digest:
        if signer is None:
            raise UserError(
                "goes with a key",
                "--digest",
                "give --key FILE, whose public half must verify the image",
            )
        return _restore(asked, signer, tested=arguments.tested, dry_run=arguments.dry_run)
    builder = provenance.builder_id(arguments.builder_id)
    made = platform_images.made(context, image_options.read(arguments), arguments.what)
    described = describe(made, asked.repository, provenance.of_checkout(context.root), builder)
    if signer is None or arguments.dry_run:
        return _dry_run(made, asked, described)
    with (
        log.stage(f"publish {made.title} to {asked.repository}"),
        Connection(asked.repository, "pull,push") as connection,
    ):
        return _publish(connection, made, asked, described, signer, arguments.withdraw)


def _asked(arguments: argparse.Namespace) -> Asked:
    repository = reference.parse(arguments.to)
    if repository.wanted:
        raise UserError(
            "has a tag or a digest",
            "--to",
            "give HOST/NAMESPACE/NAME; tags are given by --date and --tag",
        )
    today = tags.read_today()  # names the tag; nothing of the image hangs on it
    date = arguments.date or today
    if not tags.is_release_day(date) or date > today:
        raise UserError(
            f"{date!r} is not a valid day from 2020 up to today",
            "--date",
            "give YYYY-MM-DD, in UTC",
        )
    for name in arguments.tag:
        reference.parse(f"{repository}:{name}")
        if name == tags.VERIFIED:
            raise UserError(
                "moves with a signed test result only",
                f"--tag {name}",
                (
                    "python build.py promote HOST/NAME@sha256:... --suite NAME --result FILE "
                    "--key FILE"
                ),
            )
        if _RESERVED.fullmatch(name):
            raise UserError(
                "is kept for nightlies, marks, claims and attachments",
                f"--tag {name}",
                "give another name",
            )
    if arguments.digest and (
        arguments.what or not arguments.tag or not reference.is_digest(arguments.digest)
    ):
        raise UserError(
            "brings a published image back",
            "--digest",
            "give --digest sha256:HEX with --tag NAME, and neither a distribution nor a layout",
        )
    if not arguments.digest and not arguments.what:
        raise UserError(
            "nothing to publish is named",
            "publish",
            "give a distribution, oci:DIR, or --digest with --tag",
        )
    if arguments.tested and not arguments.digest:
        raise UserError(
            "what is published now has not been tested yet", "--tested", "give it with --digest"
        )
    if arguments.withdraw and not reference.is_digest(arguments.withdraw):
        raise UserError(
            f"{arguments.withdraw[:80]!r} is no digest",
            "--withdraw",
            "give sha256: and 64 hexadecimal digits, as the message that named it has them",
        )
    return Asked(
        repository, date, tuple(dict.fromkeys(arguments.tag or ["latest"])), arguments.digest
    )


Described = dict[str, "list[tuple[str, dict[str, Any]]]"]


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


def _publish(
    connection: Connection,
    made: Release,
    asked: Asked,
    described: Described,
    signer: Private,
    withdrawn: str,
) -> Result:
    """All of it, in the order in which nothing half can be seen."""
    index = made.index
    previous = _refuse_mixed(connection, asked, made.title)
    moved, _, total = registry.upload(connection, made.blob, index)
    subjects = [
        *(attachments.Subject(oci_documents.MANIFEST, image.manifest) for image in index.images),
        attachments.Subject(oci_documents.INDEX, index.document),
    ]
    for subject in subjects:
        sign(connection, subject, described[subject.digest], signer)
    read_back = download.document(connection, index.digest)
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
    data = {
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
    lines = [
        (
            f"{asked.repository}@{index.digest} is published: moved {megabytes(moved)} of "
            f"{megabytes(total)}"
        ),
        *(f"  {asked.repository}:{name}" for name in done),
    ]
    return Result(data, "\n".join(lines))


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
            )
    return previous


def _restore(asked: Asked, signer: Private, *, tested: bool, dry_run: bool) -> Result:
    """Move tags to what was published before, if it is still whole."""
    with Connection(asked.repository, "pull" if dry_run else "pull,push") as connection:
        index = download.document(connection, asked.digest)
        checked(connection, index, signer, tested=tested)
        there = {name: attachments.known(connection, name) for name in asked.tags}
        if not dry_run:
            signed_releases.move_tags(connection, index, asked.tags, signer, tags.read_today())
    previous = {name: found.digest for name, found in there.items() if found}
    data = {
        "repository": str(asked.repository),
        "digest": asked.digest,
        "tags": list(asked.tags),
        "previous": previous,
    }
    will = "would become" if dry_run else "is"
    return Result(
        data,
        "\n".join(
            (
                f"{asked.repository}:{name} {will} {asked.digest}, it was "
                f"{previous.get(name, 'not there')}"
            )
            for name in asked.tags
        ),
    )


def _dry_run(made: Release, asked: Asked, described: Described) -> Result:
    rows: list[dict[str, Any]] = [
        {"platform": f"linux/{image.architecture}", "digest": image.digest, "size": image.size}
        for image in made.index.images
    ]
    wanted = [tags.nightly(asked.date), *asked.tags]
    parts = {
        digest: {
            signed_statements.NAMES[kind]: len(oci_documents.canonical(said))
            for kind, said in pairs
        }
        for digest, pairs in described.items()
    }
    data = {
        "repository": str(asked.repository),
        "digest": made.index.digest,
        "title": made.title,
        "tags": wanted,
        "images": rows,
        "attached": parts,
    }
    lines = [f"would publish {made.title} as {asked.repository}@{made.index.digest}"]
    lines += [f"  {row['platform']}  {megabytes(row['size'])}  {row['digest']}" for row in rows]
    return Result(data, "\n".join([*lines, *(f"  then the tag {name}" for name in wanted)]))
