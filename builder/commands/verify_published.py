"""`build.py verify-published`: check a published image with nothing but the public key.

Every platform, every blob and everything that is attached to the image is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import AlteredError, Connection
from builder.release.publish import (
    description,
    image_variants,
    signed_releases,
    signing_key,
    tags,
)
from builder.release.publish.signed_releases import ReleaseReader
from builder.release.publish.verification import Check, VerificationOptions, verify_image
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse

    from builder.images.oci.reference import Reference
    from builder.release.publish.verification import TrustedStatements, Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "reference", metavar="REF", help="the image: HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
    )
    parser.add_argument(
        "--key", metavar="FILE|env:NAME", required=True, help="the public key (PEM, ECDSA P-256)"
    )
    parser.add_argument(
        "--signed-for",
        metavar="HOST/NAME",
        default="",
        help="the repository that the image was published in, if REF is a copy of it",
    )
    parser.add_argument(
        "--not-before", metavar="YYYY-MM-DD", default="", help="the oldest day of release to accept"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="compare only the sizes of the layers, rather than read and hash them",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline",
            "verify-published",
            "leave it out",
            kind=CONFLICT,
        )
    image = reference.parse_reference(arguments.reference)
    key = signing_key.read_public_key(arguments.key)
    if not image.selector:
        raise UserError(
            "needs a tag or a digest",
            str(image),
            "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST",
            kind=MISSING,
        )
    repository = _read_repository(arguments.signed_for)
    if arguments.not_before and not tags.is_day(arguments.not_before):
        raise UserError(
            f"{arguments.not_before!r} is not a valid day", "--not-before", "give YYYY-MM-DD"
        )
    options = VerificationOptions(
        read_blobs=not arguments.quick,
        require_test=image_variants.is_tag_of(image.tag, tags.VERIFIED),
        repository=repository,
    )
    strays: list[str] = []
    with Connection(image, "pull") as connection:
        try:
            index = download.read_document(connection, image.selector)
        except AlteredError as altered:
            return _refuse_altered(image, altered)
        result = verify_image(connection, index, key, options)
        if image.tag:
            reader = ReleaseReader(connection, key, repository)
            result = _check_tag(result, reader, image.tag)
            strays = reader.find_strays()
    if arguments.not_before:
        problem = _find_age_problem(result.index_statements, arguments.not_before)
        result = result.with_check(Check("index: age", problem))
    signed_releases.warn_of_strays(strays)
    return _make_result(image, result, strays, quick=arguments.quick)


def _check_tag(result: Verification, reader: ReleaseReader, tag: str) -> Verification:
    """Add the check that a tag may point to the image."""
    try:
        problem = reader.find_problem(result.digest, tag, result.index_statements)
    except AlteredError as altered:
        problem = altered.what
    return result.with_check(Check(f"index: tag {tag}", problem))


def _make_result(
    image: Reference, result: Verification, strays: list[str], *, quick: bool
) -> Result:
    described = description.describe_image(result.index_statements)
    outcome = "everything is as it was signed"
    if quick:
        outcome = "what was checked is as it was signed; layers were not read (--quick)"
    if not result.ok:
        outcome = f"refused, {result.describe_first_problem()}"
    lines = [str(check) for check in result.checks]
    lines += description.format_image(described)
    lines.append(f"{image} is {result.digest}: {outcome}")
    data = {
        "reference": str(image),
        "digest": result.digest,
        "checks": [check.as_json() for check in result.checks],
        "image": described,
        "layers_read": not quick,
        "disregarded_tags": strays,
    }
    return Result(data, "\n".join(lines), ok=result.ok)


def _refuse_altered(image: Reference, problem: AlteredError) -> Result:
    """Return the result for an index whose content does not match its digest.

    Nothing else of the image can be checked then.
    """
    check = Check("index: document", problem.what)
    data = {
        "reference": str(image),
        "digest": image.digest or None,
        "checks": [check.as_json()],
        "image": None,
        "layers_read": False,
        "disregarded_tags": [],
    }
    refusal = f"{image} is refused, {check.name}: {check.problem}; {problem.do}"
    return Result(data, f"{check}\n{refusal}", ok=False)


def _read_repository(text: str) -> str:
    """Return the repository that `--signed-for` names, or ""."""
    if not text:
        return ""
    repository = reference.parse_reference(text)
    if repository.selector:
        raise UserError("has a tag or a digest", "--signed-for", "give HOST/NAME")
    return repository.repository


def _find_age_problem(statements: TrustedStatements, oldest: str) -> str:
    """Return why an image is too old, or "" if it is not.

    Args:
        statements: The trusted statements of the index.
        oldest: The oldest day of release to accept.
    """
    today = tags.read_today()
    releases = [
        release
        for release in signed_releases.read_releases(statements)
        if signed_releases.is_past(release.position, today)
    ]
    if not releases:
        return "no signed release of it is of a day up to today"
    date = releases[0].position.date
    return "" if date >= oldest else f"the image was last released on {date}"
