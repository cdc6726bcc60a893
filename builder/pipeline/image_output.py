"""Make an image and deliver it: check the options, build, and describe what was built.

The manifest, and all that reads it, is imported only if the notes of an earlier build do not tell
the foundation of the image. This makes an edit of rosetta/ quick to build.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.images import delivery, foundation, image_target, top_layers
from builder.upstream import checkout
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.images.foundation import Foundations, Notes
    from builder.images.image_build import ImageRequest
    from builder.images.image_target import Output
    from builder.images.oci.oci_documents import Image
    from builder.images.top_layers import BuiltImage


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
    projects: tuple[str, ...] = ()


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
    from builder.core import manifest
    from builder.images import image_build

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
        projects=tuple(loaded.choose_projects(distribution, options.projects)),
    )
    image_build.check_request(request)
    return request


def build_and_deliver(
    context: Context, distribution: str, options: Options, target: Output, since: str
) -> dict[str, Any]:
    """Build an image and deliver it to its target.

    Args:
        context: The context of the command.
        distribution: Its name in the manifest.
        options: The options of the command line.
        target: The place that gets the image.
        since: For a bundle, the lock.json or bundle.json whose layers are left out; or empty.

    Returns:
        A description of the image, for --json.
    """
    notes = open_notes(context, distribution, options, target)
    found = notes.find()
    # An image that the target cannot take is refused before anything is built.
    if found is None:
        request = make_request(context, distribution, options, target)
        deliver = delivery.prepare_delivery(target, context, options.engine, since)
        found = _make_foundations(request, options.base, notes)
    else:
        deliver = delivery.prepare_delivery(target, context, options.engine, since)
    built = top_layers.finish_image(context.cache, found, checkout.read_publisher(context.root))
    return describe_built(built) | {"name": target.name, **deliver(built)}


def open_notes(context: Context, distribution: str, options: Options, target: Output) -> Notes:
    """Return the notes of earlier builds; the arguments are those of `make_request`."""
    # The name of the image, or the path of the layout, does not decide a layer.
    request = {"distribution": distribution, "kind": target.kind, **asdict(options)}
    return foundation.Notes(context, request)


def _make_foundations(request: ImageRequest, base: str, notes: Notes) -> Foundations:
    """Return the foundations of an image, and note them if only files on this machine decide."""
    from builder.images import image_build

    entries = [request.manifest.source(name) for name in request.sources]
    named = [request.manifest.folder("locks"), *(entry.patches for entry in entries)]
    named += [entry.overlay for entry in entries if entry.overlay]
    if base.startswith("oci:"):
        named.append(Path(base.removeprefix("oci:")).absolute() / "index.json")
    before = notes.hash_inputs(named)
    found = image_build.make_foundations(request)
    records = [entry.record for entry in found.by_architecture.values()]
    is_local = base.startswith("oci:") or all(
        record["base"]["name"].startswith("bootstrap:") for record in records
    )
    if is_local and found.is_locked and not any(map(image_build.count_replaced, records)):
        notes.write(found, before, notes.hash_inputs(named))
    return found


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
