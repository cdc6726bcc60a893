"""Check a published image with nothing but the public key: every platform, every blob by its hash,
what is attached, and who signed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import AlteredError, Connection
from builder.release.publish import description, signed_releases, signing_key, tags, verification
from rosetta.core.errors import CONFLICT, MISSING, UserError

if TYPE_CHECKING:
    import argparse

    from builder.images.oci.reference import Reference


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
    wanted, public = (
        reference.parse_reference(arguments.reference),
        signing_key.public(arguments.key),
    )
    if not wanted.selector:
        raise UserError(
            "needs a tag or a digest",
            str(wanted),
            "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST",
            kind=MISSING,
        )
    repository = _repository(arguments.signed_for)
    if arguments.not_before and not tags.is_day(arguments.not_before):
        raise UserError(
            f"{arguments.not_before!r} is not a valid day", "--not-before", "give YYYY-MM-DD"
        )
    strays: list[str] = []
    with Connection(wanted, "pull") as connection:
        try:
            index = download.read_document(connection, wanted.selector)
        except AlteredError as altered:
            return _refuse_altered(wanted, altered)
        found = verification.verdict(
            connection,
            index,
            public,
            blobs=not arguments.quick,
            tested=wanted.tag == tags.VERIFIED,
            repository=repository,
        )
        known = found.trusted.get("index", verification.Trusted())
        if wanted.tag:
            try:
                problem = signed_releases.find_problem(
                    connection, index.digest, wanted.tag, known, public, repository
                )
            except AlteredError as altered:
                problem = altered.what
            found = found.with_row(verification.Row(f"index: tag {wanted.tag}", problem))
            strays = signed_releases.find_strays(connection, public, repository)
    if arguments.not_before:
        found = found.with_row(
            verification.Row("index: age", _age_problem(known, arguments.not_before))
        )
    signed_releases.warn_of_strays(strays)
    image = description.describe_image(known)
    rows = [
        {"what": row.what, "ok": not row.problem, "problem": row.problem or None}
        for row in found.rows
    ]
    outcome = "all of it is as it was signed"
    if arguments.quick:
        outcome = "what was checked is as it was signed; layers were not read (--quick)"
    if not found.ok:
        outcome = f"refused, {found.first()}"
    lines = [
        *map(str, found.rows),
        *description.format_image(image),
        f"{wanted} is {found.digest}: {outcome}",
    ]
    data = {
        "reference": str(wanted),
        "digest": found.digest,
        "checks": rows,
        "image": image,
        "layers_read": not arguments.quick,
        "disregarded_tags": strays,
    }
    return Result(data, "\n".join(lines), ok=found.ok)


def _refuse_altered(wanted: Reference, problem: AlteredError) -> Result:
    """Return the result for an index that is not what its digest says: nothing else of it can be
    checked.
    """
    row = verification.Row("index: document", problem.what)
    checks = [{"what": row.what, "ok": False, "problem": row.problem}]
    data = {
        "reference": str(wanted),
        "digest": wanted.digest or None,
        "checks": checks,
        "image": None,
        "layers_read": False,
        "disregarded_tags": [],
    }
    return Result(
        data, f"{row}\n{wanted} is refused, {row.what}: {row.problem}; {problem.do}", ok=False
    )


def _repository(text: str) -> str:
    """Read --signed-for."""
    if not text:
        return ""
    parsed = reference.parse_reference(text)
    if parsed.selector:
        raise UserError("has a tag or a digest", "--signed-for", "give HOST/NAME")
    return parsed.repository


def _age_problem(known: verification.Trusted, oldest: str) -> str:
    """Say why an image is too old; empty where it is not."""
    today = tags.read_today()
    releases = [
        release
        for release in signed_releases.read_releases(known)
        if signed_releases.has_come(release.position, today)
    ]
    if not releases:
        return "no signed release of it is of a day up to today"
    date = releases[0].position.date
    return "" if date >= oldest else f"it was last released on {date}"
