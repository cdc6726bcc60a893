"""The options that describe an image, for the commands build, context and publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.images import image_target
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse

    from builder.pipeline.image_output import Options

# The options that a bare environment does not have, as attributes of the parsed arguments.
_IMAGE_OPTIONS = (
    "platform",
    "base",
    "engine",
    "transformer_engine",
    "compression",
    "since",
    "locked",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--platform",
        metavar="LIST",
        default="",
        help=(
            "the platforms, such as linux/amd64,linux/arm64 (default: all of the distribution; "
            "for `image` the platform of this machine)"
        ),
    )
    group.add_argument(
        "--base",
        metavar="IMAGE",
        default="",
        help=(
            "the base of the image: bootstrap, an image in a registry or the engine, or oci:DIR "
            "(default: the locked one)"
        ),
    )
    group.add_argument(
        "--engine",
        default="",
        choices=["docker", "buildah"],
        help="the engine that builds the base and gets `image` (default: the first that answers)",
    )
    group.add_argument(
        "--transformer-engine",
        default="",
        choices=["yes", "no"],
        help="whether to add Transformer Engine (default: yes for CUDA)",
    )
    group.add_argument(
        "--compression",
        default="",
        choices=["gzip", "zstd"],
        help="the compression of the layers (default: gzip; for `image` zstd)",
    )
    group.add_argument(
        "--locked",
        action="store_true",
        help=(
            "image and oci: fail if a locked Debian package is gone, rather than take a newer "
            "version (all other outputs always fail)"
        ),
    )


def refuse_image_options(arguments: argparse.Namespace) -> None:
    """Raise UserError if an option for images is given and the output is a bare environment."""
    for name in _IMAGE_OPTIONS:
        if getattr(arguments, name):
            raise UserError(
                "is for images, and the output is a bare environment",
                f"--{name.replace('_', '-')}",
                f"leave it out, or give --output {image_target.FORMS}",
            )


def read_image_options(arguments: argparse.Namespace) -> Options:
    """Return the options of the command line that describe an image."""
    from builder.pipeline.image_output import Options

    return Options(
        arguments.accelerator,
        arguments.platform,
        arguments.base,
        arguments.engine,
        arguments.transformer_engine,
        arguments.compression,
        arguments.locked,
    )
