"""`build.py changelog`: list what changed between two published images, by their SBOMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core import log
from builder.core.command_context import Context, Result
from builder.release.publish import image_comparison, signing_key
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "old", metavar="OLD", help="the older image: HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
    )
    parser.add_argument("new", metavar="NEW", help="the newer image")
    parser.add_argument(
        "--key",
        metavar="FILE|env:NAME",
        default="",
        help="the public key that must have signed both SBOMs (default: no signature is checked)",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if context.offline:
        raise UserError("a registry cannot be reached with --offline", "changelog", "leave it out")
    key = signing_key.read_public_key(arguments.key) if arguments.key else None
    if key is None:
        log.warn("no --key: the signatures of the two SBOMs are not checked")
    old = image_comparison.read_published_image(arguments.old, key)
    new = image_comparison.read_published_image(arguments.new, key)
    comparison = image_comparison.compare_images(context, old, new)
    return Result(comparison, image_comparison.comparison_as_markdown(comparison))
