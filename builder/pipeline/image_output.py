"""Make an image and deliver it: check the options, build, and describe what was built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import manifest
from builder.images import delivery, image_build, image_target
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.images.image_build import Built, Request
    from builder.images.image_target import Output


@dataclass(frozen=True)
class Options:
    """What a command line says of an image; an empty string stands for the default."""

    accelerator: str
    platform: str = ""
    base: str = ""
    engine: str = ""
    transformer_engine: str = ""
    compression: str = ""
    locked: bool = False


def request(context: Context, distribution: str, options: Options, wanted: Output) -> Request:
    """Return what the options ask for, checked against the manifest."""
    loaded = manifest.load(context.manifest_path)
    entry = loaded.distribution(distribution)
    if options.transformer_engine == "yes" and options.accelerator == "cpu":
        raise UserError(
            "Transformer Engine needs CUDA",
            "--transformer-engine",
            "give --accelerator cuda12 or cuda13, or leave it out",
        )
    asked = image_build.Request(
        context,
        loaded,
        distribution,
        options.accelerator,
        image_target.platforms(options.platform, entry.architectures, wanted.kind),
        options.transformer_engine != "no" and options.accelerator != "cpu",
        options.compression or wanted.compression,
        options.base,
        options.engine,
        local=wanted.kind in ("image", "oci") and not options.locked,
    )
    image_build.check(asked)
    return asked


def build_and_deliver(asked: Request, wanted: Output, since: str) -> dict[str, Any]:
    """Build an image and bring it to its place; return what was built, for --json.

    Args:
        asked: the image.
        wanted: where it goes.
        since: for a bundle, the lock.json or bundle.json whose layers are left out; or empty.
    """
    # What the place cannot take is refused before anything is made.
    destination = delivery.destination(wanted, asked, since)
    built = image_build.build(asked)
    return report(built) | {"name": wanted.name, **destination(built)}


def report(built: Built) -> dict[str, Any]:
    """Return what was built, for --json."""
    images = [
        {
            "platform": f"linux/{image.architecture}",
            "digest": image.digest,
            "config": image.config_digest,
            "size": image.size,
            "layers": [
                {
                    "name": each.name,
                    "digest": each.digest,
                    "diff_id": each.diff_id,
                    "size": each.size,
                    "unpacked": each.unpacked,
                }
                for each in image.layers
            ],
        }
        for image in built.index.images
    ]
    first = next(iter(built.records.values()))
    return {
        "distribution": first["distribution"],
        "accelerator": first["accelerator"],
        "digest": built.index.digest,
        "images": images,
        "base": first["base"],
        "transformer_engine": first["transformer_engine"],
        "sources": list(first["sources"].values()),
    }
