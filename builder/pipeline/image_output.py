"""Make an image and deliver it: check the options, build, and describe what was built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.images import delivery, image_build, image_target
from builder.upstream import checkout
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.images.image_build import BuiltImage, ImageRequest
    from builder.images.image_target import Output
    from builder.images.oci.oci_documents import Image


@dataclass(frozen=True)
class Options:
    """The options of a command line that describe an image; empty text stands for the default."""

    accelerator: str
    platform: str = ""
    base: str = ""
    engine: str = ""
    transformer_engine: str = ""
    compression: str = ""
    locked: bool = False


def make_request(
    context: Context, distribution: str, options: Options, target: Output
) -> ImageRequest:
    """Return the image that the options describe, checked against the manifest.

    Args:
        context: The context of the command.
        distribution: Its name in the manifest.
        options: The options of the command line.
        target: The place that will get the image. It decides platforms and compression that the
            options leave open.

    Raises:
        UserError: the manifest has no such image, or the options contradict each other.
    """
    loaded = manifest.load(context.manifest_path)
    entry = loaded.distribution(distribution)
    if options.transformer_engine == "yes" and options.accelerator == "cpu":
        raise UserError(
            "Transformer Engine needs CUDA",
            "--transformer-engine",
            "give --accelerator cuda12 or cuda13, or leave the option out",
        )
    request = image_build.ImageRequest(
        context,
        loaded,
        distribution,
        options.accelerator,
        image_target.parse_platforms(options.platform, entry.architectures, target.kind),
        options.transformer_engine != "no" and options.accelerator != "cpu",
        options.compression or target.compression,
        options.base,
        options.engine,
        local=target.kind in ("image", "oci") and not options.locked,
        publisher=checkout.read_publisher(context.root),
    )
    image_build.check_request(request)
    return request


def build_and_deliver(request: ImageRequest, target: Output, since: str) -> dict[str, Any]:
    """Build an image and deliver it to its target.

    Args:
        request: The image.
        target: The place that gets the image.
        since: For a bundle, the lock.json or bundle.json whose layers are left out; or empty.

    Returns:
        A description of the image, for --json.
    """
    # An image that the target cannot take is refused before anything is built.
    deliver = delivery.prepare_delivery(target, request, since)
    built = image_build.build_image(request)
    return describe_built(built) | {"name": target.name, **deliver(built)}


def describe_built(built: BuiltImage) -> dict[str, Any]:
    """Return the description of what was built, for --json."""
    first = next(iter(built.records.values()))
    return {
        "distribution": first["distribution"],
        "accelerator": first["accelerator"],
        "digest": built.index.digest,
        "images": [_describe_image(image) for image in built.index.images],
        "base": first["base"],
        "transformer_engine": first["transformer_engine"],
        "sources": list(first["sources"].values()),
    }


def _describe_image(image: Image) -> dict[str, Any]:
    layers = [
        {
            "name": layer.name,
            "digest": layer.digest,
            "diff_id": layer.diff_id,
            "size": layer.size,
            "unpacked": layer.unpacked,
        }
        for layer in image.layers
    ]
    return {
        "platform": f"linux/{image.architecture}",
        "digest": image.digest,
        "config": image.config_digest,
        "size": image.size,
        "layers": layers,
    }
