"""The command `reproduce`: build an image again from its own lock and name the first difference.

No layer of the image is taken from the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.core.command_context import Context, Result
from builder.pipeline import reproduction

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "image",
        metavar="IMAGE",
        help="the image: oci:PATH, registry:HOST/NAME:TAG, or its name in the engine",
    )
    parser.add_argument(
        "--base",
        metavar="IMAGE",
        default="",
        help="the base of the image, if it was built with --base",
    )
    parser.add_argument(
        "--engine",
        default="",
        choices=["docker", "buildah"],
        help="the engine that has the image and builds the base",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    data = reproduction.reproduce_image(context, arguments.image, arguments.base, arguments.engine)
    if data["same"]:
        return Result(data, f"the same, byte for byte: {data['digest']}")
    lines = [
        "not the same",
        f"  image    {data['digest']}",
        f"  rebuilt  {data['rebuilt']}",
        f"  first difference: {data['difference'] or 'the index itself'}",
    ]
    return Result(data, "\n".join(lines), ok=False)
