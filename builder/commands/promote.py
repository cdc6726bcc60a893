"""`build.py promote`: move latest-verified to an image that has passed a test suite.

A signed statement of the result is attached to the image.
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
    from collections.abc import Collection, Mapping

    from builder.images.registry.download import Document

_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ -]{0,99}")
_MAX_RESULT_SIZE = 1 << 24  # bytes


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
        predicate = read_test_result(
            arguments.suite, Path(arguments.result), image.digest, _list_platforms(index)
        )
        publication.check_publication(connection, index, key)
        publication.sign_document(
            connection,
            attachments.Subject(index.media_type, index.data),
            [(signed_statements.TEST, predicate)],
            key,
        )
        publication.check_publication(connection, index, key, require_test=True)
        previous = signed_releases.move_tags(
            connection, index, [tags.VERIFIED], key, tags.read_today()
        )[tags.VERIFIED]
    name = f"{image.host}/{image.name}:{tags.VERIFIED}"
    data = {
        "reference": name,
        "digest": image.digest,
        "suite": arguments.suite,
        "previous": previous,
        "statement": predicate,
    }
    text = (
        f"{name} is {image.digest}, which passed {arguments.suite}; before, the tag was "
        f"{previous or 'a new tag'}"
    )
    return Result(data, text)


def _list_platforms(index: Document) -> list[str]:
    """Return the digests of the images of an index."""
    images = index.json().get("manifests")
    if not isinstance(images, list):
        return []
    return [str(image.get("digest")) for image in images if isinstance(image, dict)]


def read_test_result(
    suite: str, file: Path, digest: str, platforms: Collection[str] = ()
) -> dict[str, Any]:
    """Return the statement that a suite has passed, as a predicate of in-toto's test result v0.1.

    Args:
        suite: The name of the suite.
        file: The JSON document of the suite.
        digest: The digest of the index that is promoted.
        platforms: The digests of the index's images, in which the suite may have run.

    Raises:
        UserError: the suite has not passed, or it tested another image.
    """
    if not _SUITE.fullmatch(suite):
        raise UserError(
            f"{suite[:60]!r} is not a valid name of a suite",
            "--suite",
            "use letters, digits, and . _ / - or spaces between them",
        )
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_RESULT_SIZE)
        document = json.loads(content)
        has_passed = document["ok"] is True
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(file), "give the suite's JSON document"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            "is not a test result: JSON with a field `ok` is expected",
            str(file),
            "give what a `build.py` command wrote with --json",
            kind=INVALID,
        ) from error
    if not has_passed:
        raise UserError(
            f"{suite} has not passed",
            str(file),
            "latest-verified was not moved",
            kind=FAILED,
            value=suite,
        )
    _check_tested_digest(document, file, digest, {digest, *platforms})
    sha256 = hashlib.sha256(content).hexdigest()
    return {
        "result": "PASSED",
        "configuration": [{"name": suite, "digest": {"sha256": sha256}}],
        "passedTests": [suite],
    }


def _check_tested_digest(
    document: Mapping[str, Any], file: Path, digest: str, accepted: Collection[str]
) -> None:
    """Check that a result is not of another image, if it names the image at all.

    Args:
        document: The JSON document of the suite.
        file: The file of the document, for errors.
        digest: The digest of the index that is promoted.
        accepted: The digests that the result may be of.
    """
    result = document.get("result")
    for part in (document, result if isinstance(result, dict) else {}):
        if "digest" in part and str(part["digest"]) not in accepted:
            other = str(part["digest"])[:80]
            raise UserError(
                f"is the result of {other!r}, not of {digest[:19]}…",
                str(file),
                "promote the digest that was tested",
                kind=DIFFERS,
                value=other,
            )
