"""Check a published image with nothing but the public key: every platform, every blob by its hash, what is attached, and who signed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import FatalError
from builder.image import pull, reference
from builder.image.transport import Connection
from builder.publish import key, tags, trust
from builder.verb import Context, Result

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REF", help="HOST/NAME:TAG or HOST/NAME@sha256:DIGEST")
    parser.add_argument("--key", metavar="FILE|env:NAME", required=True, help="the public key (PEM, ECDSA P-256)")
    parser.add_argument("--quick", action="store_true", help="ask for the size of each layer, where it is read and hashed otherwise")


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """The verb."""
    if context.offline:
        raise FatalError("a registry cannot be reached with --offline", "verify-published", "leave it out")
    wanted, public = reference.parse(arguments.reference), key.public(arguments.key)
    if not wanted.wanted:
        raise FatalError("needs a tag or a digest", str(wanted), "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST")
    with Connection(wanted, "pull") as connection:
        index = pull.document(connection, wanted.wanted)
        found = trust.verdict(connection, index, public, blobs=not arguments.quick, tested=wanted.tag == tags.VERIFIED)
    rows = [{"what": row.what, "ok": not row.problem, "problem": row.problem or None} for row in found.rows]
    last = f"{wanted} is {found.digest}: {'all of it is as it was signed' if found.ok else 'refused, ' + found.first()}"
    return Result({"reference": str(wanted), "digest": found.digest, "checks": rows}, "\n".join([*map(str, found.rows), last]), ok=found.ok)
