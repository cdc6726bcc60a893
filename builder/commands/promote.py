"""Let latest-verified point to a digest that a suite has passed, with a signed statement of that
attached to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import Connection
from builder.release.publish import (
    attachments,
    publication,
    signed_releases,
    signed_statements,
    signing_key,
    tags,
)
from rosetta.core.errors import DIFFERS, FAILED, INVALID, UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection

_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ -]{0,99}")
_LARGEST = 1 << 24


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
            "the JSON document of the suite, as `build.py verify --write` makes one; its ok must "
            "be true"
        ),
    )
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        required=True,
        help="the private key to sign with (PEM, ECDSA P-256)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if context.offline:
        raise UserError("a registry cannot be reached with --offline", "promote", "leave it out")
    wanted, signer = (
        reference.parse_reference(arguments.reference),
        signing_key.private(arguments.key),
    )
    if not wanted.digest or wanted.tag:
        raise UserError(
            "is not named by its digest",
            str(wanted),
            "give HOST/NAME@sha256:DIGEST, that which was tested",
            kind=INVALID,
        )
    with Connection(wanted, "pull,push") as connection:
        index = download.read_document(connection, wanted.digest)
        images = index.json().get("manifests")
        platforms = (
            [str(image.get("digest")) for image in images if isinstance(image, dict)]
            if isinstance(images, list)
            else []
        )
        said = passed(arguments.suite, Path(arguments.result), wanted.digest, platforms)
        publication.checked(connection, index, signer)
        publication.sign(
            connection,
            attachments.Subject(index.media_type, index.data),
            [(signed_statements.TEST, said)],
            signer,
        )
        publication.checked(connection, index, signer, tested=True)
        previous = signed_releases.move_tags(
            connection, index, [tags.VERIFIED], signer, tags.read_today()
        )[tags.VERIFIED]
    name = f"{wanted.host}/{wanted.name}:{tags.VERIFIED}"
    data = {
        "reference": name,
        "digest": wanted.digest,
        "suite": arguments.suite,
        "previous": previous,
        "statement": said,
    }
    return Result(
        data,
        (
            f"{name} is {wanted.digest}, which passed {arguments.suite}; it was "
            f"{previous or 'not there'}"
        ),
    )


def passed(suite: str, file: Path, digest: str, platforms: Collection[str] = ()) -> dict[str, Any]:
    """Return the predicate, in-toto's test result v0.1: the suite, the sha256 of its document, and
    that it passed.

    Args:
        suite: its name.
        file: its document.
        digest: of the index that is promoted.
        platforms: the digests of the index's images, which a suite may have run in.

    Raises:
        UserError: the document does not say so, or names another digest.
    """
    digests = {digest, *platforms}
    if not _SUITE.fullmatch(suite):
        raise UserError(
            f"{suite[:60]!r} is no name of a suite",
            "--suite",
            "letters, digits, and . _ / - or spaces between them",
        )
    try:
        with open(file, "rb") as stream:
            raw = stream.read(_LARGEST)
        document = json.loads(raw)
        fine = document["ok"]
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(file), "give the suite's JSON document"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            "is no result: JSON with a field `ok` is expected",
            str(file),
            "give what a `build.py` verb wrote with --json",
            kind=INVALID,
        ) from error
    if fine is not True:
        raise UserError(
            f"{suite} has not passed",
            str(file),
            "latest-verified stays where it is",
            kind=FAILED,
            value=suite,
        )
    result = document.get("result")
    for place in (document, result if isinstance(result, dict) else {}):
        if "digest" in place and str(place["digest"]) not in digests:
            raise UserError(
                f"is the result of {str(place['digest'])[:80]!r}, not of {digest[:19]}…",
                str(file),
                "promote the digest that was tested",
                kind=DIFFERS,
                value=str(place["digest"])[:80],
            )
    return {
        "result": "PASSED",
        "configuration": [{"name": suite, "digest": {"sha256": hashlib.sha256(raw).hexdigest()}}],
        "passedTests": [suite],
    }
