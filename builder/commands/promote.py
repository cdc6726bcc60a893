"""`build.py promote`: move latest-verified to an image that has passed a test suite.

A signed statement of the result is attached to the image.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import Connection
from builder.release.publish import (
    attachments,
    image_variants,
    publication,
    signed_releases,
    signed_statements,
    signing_key,
    suite_results,
    tags,
    verification,
)
from rosetta.core import value_parsing
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    import argparse

    from builder.images.registry.download import Document
    from builder.release.publish.signing_key import PrivateKey


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "reference",
        metavar="HOST/NAME@sha256:DIGEST",
        help="the tested image; a tag may have moved since the test",
    )
    parser.add_argument("--suite", metavar="NAME", required=True, help="the name of the suite")
    parser.add_argument(
        "--result",
        metavar="FILE",
        required=True,
        help=(
            "the JSON document of the suite, as `build.py verify --gpu --write` makes one: it has "
            "the digest, its ok is true, and its checks passed"
        ),
    )
    parser.add_argument(
        "--accept-not-run",
        metavar="CHECKS",
        type=_parse_checks,
        default=(),
        help=(
            "accept that the machine of the suite could not run these checks, of fp8, te and "
            "collective, and sign that (default: none)"
        ),
    )
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        required=True,
        help="the private key to sign with (PEM, ECDSA P-256)",
    )


def _parse_checks(text: str) -> tuple[str, ...]:
    """Return the value of --accept-not-run: names of checks, separated by commas."""
    return tuple(value_parsing.parse_list("", text, choices=suite_results.CHECKS))


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if context.offline:
        raise UserError("a registry cannot be reached with --offline", "promote", "leave it out")
    image = reference.parse_reference(arguments.reference)
    key = signing_key.read_private_key(arguments.key)
    if not image.digest or image.tag:
        raise UserError(
            "does not name the image by its digest alone",
            str(image),
            "give HOST/NAME@sha256:DIGEST of the image that was tested",
            kind=INVALID,
        )
    with Connection(image, "pull,push") as connection:
        index = download.read_document(connection, image.digest)
        publication.check_publication(connection, index, key)
        predicate = suite_results.read_suite_result(
            arguments.suite,
            Path(arguments.result),
            _describe_image(connection, index, key),
            arguments.accept_not_run,
        )
        publication.sign_document(
            connection,
            attachments.Subject(index.media_type, index.data),
            [(signed_statements.TEST, predicate)],
            key,
        )
        publication.check_publication(connection, index, key, require_test=True)
        suffix = image_variants.find_suffix(publication.read_accelerator(index))
        tag = image_variants.add_suffix(tags.VERIFIED, suffix)
        previous = signed_releases.move_tags(connection, index, [tag], key, tags.read_today())[tag]
    name = f"{image.host}/{image.name}:{tag}"
    data = {
        "reference": name,
        "digest": image.digest,
        "suite": arguments.suite,
        "previous": previous,
        "statement": predicate,
    }
    text = (
        f"{name} is {image.digest}, which passed {', '.join(predicate['passedTests'])}; before, "
        f"the tag was {previous or 'a new tag'}"
    )
    if gaps := predicate.get("warnedTests"):
        text += f"\nnot run on the machine of the suite: {', '.join(gaps)}"
    return Result(data, text)


def _describe_image(
    connection: Connection, index: Document, key: PrivateKey
) -> suite_results.ImageFacts:
    """Return what the signed provenance of an index says about the image."""
    statements = verification.read_trusted_statements(connection, index.digest, key.public)
    (provenance, *_) = statements.predicates[signed_statements.PROVENANCE]
    return suite_results.describe_image(index.digest, _list_platforms(index), provenance)


def _list_platforms(index: Document) -> list[str]:
    """Return the digests of the images of an index."""
    images = index.json().get("manifests")
    if not isinstance(images, list):
        return []
    return [str(image.get("digest")) for image in images if isinstance(image, dict)]
