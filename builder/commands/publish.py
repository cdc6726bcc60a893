"""Publish an image: everything by digest first, with SBOM, provenance and signature, read back;
only then do tags move.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.commands import image_options
from builder.core import log
from builder.core.command_context import Context, Result
from builder.images.oci import oci_documents, reference
from builder.images.registry.transport import Connection
from builder.images.registry.upload import format_size
from builder.release.publish import (
    platform_images,
    provenance,
    publication,
    signed_statements,
    signing_key,
    tags,
)
from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, UserError

if TYPE_CHECKING:
    import argparse

    from builder.release.publish.platform_images import Release

_RESERVED = re.compile(r"nightly-.*|moved-.*|claim-.*|sha256-.*")


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
        help="the repository of this distribution and accelerator",
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
        help="also move this tag, after the nightly one (may be repeated; default: latest)",
    )
    parser.add_argument(
        "--digest",
        metavar="sha256:HEX",
        default="",
        help=(
            "go back to an image that is published already: move the tags of --tag to it, and do "
            "nothing else"
        ),
    )
    parser.add_argument(
        "--tested",
        action="store_true",
        help=("with --digest: only if this key signed a passed test of the image, as promote does"),
    )
    parser.add_argument(
        "--withdraw",
        metavar="sha256:HEX",
        default="",
        help="first withdraw the claim of a publisher that will not come back",
    )
    parser.add_argument(
        "--builder-id",
        metavar="URI",
        default=provenance.BUILDER,
        help=f"the builder that the provenance names (default: {provenance.BUILDER})",
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=["cpu", "cuda12", "cuda13"],
        help="CPUs, or GPUs of this CUDA version (default: cpu)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build the image and print what would be sent, but send nothing",
    )
    image_options.add_arguments(parser)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    asked = _asked(arguments)
    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "publish", "leave it out", kind=CONFLICT
        )
    if not arguments.key and not arguments.dry_run:
        raise UserError(
            "needs a key to sign with",
            "publish",
            "give --key FILE; docs/how-to/publish-images.md shows how to make one",
            kind=MISSING,
        )
    signer = signing_key.private(arguments.key) if arguments.key else None
    if asked.digest:
        if signer is None:
            raise UserError(
                "goes with a key",
                "--digest",
                "give --key FILE, whose public half must verify the image",
            )
        data = publication.restore(
            asked, signer, tested=arguments.tested, dry_run=arguments.dry_run
        )
        return Result(data, _describe_restored(data, dry_run=arguments.dry_run))
    builder = provenance.builder_id(arguments.builder_id)
    made = platform_images.made(context, image_options.read(arguments), arguments.what)
    described = publication.describe(
        made, asked.repository, provenance.of_checkout(context.root), builder
    )
    if signer is None or arguments.dry_run:
        return _dry_run(made, asked, described)
    with (
        log.stage(f"publish {made.title} to {asked.repository}"),
        Connection(asked.repository, "pull,push") as connection,
    ):
        data = publication.publish(connection, made, asked, described, signer, arguments.withdraw)
    return Result(data, _describe_published(data))


def _asked(arguments: argparse.Namespace) -> publication.Asked:
    repository = reference.parse_reference(arguments.to)
    if repository.selector:
        raise UserError(
            "has a tag or a digest",
            "--to",
            "give HOST/NAMESPACE/NAME; tags are given by --date and --tag",
            kind=INVALID,
        )
    today = tags.read_today()  # names the tag; nothing of the image hangs on it
    date = arguments.date or today
    if not tags.is_release_day(date) or date > today:
        raise UserError(
            f"{date!r} is not a valid day from 2020 up to today",
            "--date",
            "give YYYY-MM-DD, in UTC",
            kind=INVALID,
            value=date,
        )
    for name in arguments.tag:
        reference.parse_reference(f"{repository}:{name}")
        if name == tags.VERIFIED:
            raise UserError(
                "moves with a signed test result only",
                f"--tag {name}",
                (
                    "python build.py promote HOST/NAME@sha256:... --suite NAME --result FILE "
                    "--key FILE"
                ),
                kind=DENIED,
                value=name,
            )
        if _RESERVED.fullmatch(name):
            raise UserError(
                "is kept for nightlies, marks, claims and attachments",
                f"--tag {name}",
                "give another name",
                kind=DENIED,
                value=name,
            )
    if arguments.digest and (
        arguments.what or not arguments.tag or not reference.is_digest(arguments.digest)
    ):
        raise UserError(
            "brings a published image back",
            "--digest",
            "give --digest sha256:HEX with --tag NAME, and neither a distribution nor a layout",
            kind=CONFLICT,
        )
    if not arguments.digest and not arguments.what:
        raise UserError(
            "nothing to publish is named",
            "publish",
            "give a distribution, oci:DIR, or --digest with --tag",
            kind=MISSING,
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
            kind=INVALID,
            value=arguments.withdraw[:80],
        )
    return publication.Asked(
        repository, date, tuple(dict.fromkeys(arguments.tag or ["latest"])), arguments.digest
    )


def _describe_published(data: dict[str, Any]) -> str:
    repository = data["repository"]
    return "\n".join(
        [
            (
                f"{repository}@{data['digest']} is published: "
                f"moved {format_size(data['moved'])} of {format_size(data['total'])}"
            ),
            *(f"  {repository}:{name}" for name in data["tags"]),
        ]
    )


def _describe_restored(data: dict[str, Any], *, dry_run: bool) -> str:
    will = "would become" if dry_run else "is"
    return "\n".join(
        (
            f"{data['repository']}:{name} {will} {data['digest']}, it was "
            f"{data['previous'].get(name, 'not there')}"
        )
        for name in data["tags"]
    )


def _dry_run(made: Release, asked: publication.Asked, described: publication.Described) -> Result:
    rows: list[dict[str, Any]] = [
        {"platform": f"linux/{image.architecture}", "digest": image.digest, "size": image.size}
        for image in made.index.images
    ]
    wanted = [tags.nightly(asked.date), *asked.tags]
    parts = {
        digest: {
            signed_statements.NAMES[kind]: len(oci_documents.encode_json(said))
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
    lines += [f"  {row['platform']}  {format_size(row['size'])}  {row['digest']}" for row in rows]
    return Result(data, "\n".join([*lines, *(f"  then the tag {name}" for name in wanted)]))
