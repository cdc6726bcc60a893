"""The build verb's image side: its options, what it refuses, where the finished image goes, and
what is said about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.command_context import Context, Result
from builder.images import delivery, image_build, image_target
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse

    from builder.images.image_build import Built, Request
    from builder.images.image_target import Output

_ONLY_IMAGES = (
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
            "linux/amd64,linux/arm64 (default: all of the distribution's; for `image` this "
            "machine's)"
        ),
    )
    group.add_argument(
        "--base",
        metavar="IMAGE",
        default="",
        help=(
            "what the image stands on: `bootstrap`, an image of a registry or the engine, or "
            "oci:DIR (default: as locked)"
        ),
    )
    group.add_argument(
        "--engine",
        default="",
        choices=["docker", "buildah"],
        help="what builds the base and takes `image` (default: the first that answers)",
    )
    group.add_argument(
        "--transformer-engine",
        default="",
        choices=["yes", "no"],
        help="with Transformer Engine (default: yes where the accelerator is CUDA)",
    )
    group.add_argument(
        "--compression",
        default="",
        choices=["gzip", "zstd"],
        help="of the layers (default: gzip, which everything reads; zstd for `image`)",
    )
    group.add_argument(
        "--locked",
        action="store_true",
        help=(
            "image and oci: fail where a locked Debian package is gone, and take no newer version "
            "(all other outputs always do)"
        ),
    )


def refuse_options(arguments: argparse.Namespace) -> None:
    """UserError where an option for images stands beside a bare environment."""
    for name in _ONLY_IMAGES:
        if getattr(arguments, name):
            raise UserError(
                "is for images, and the output is a bare environment",
                f"--{name.replace('_', '-')}",
                f"leave it out, or give --output {image_target.FORMS}",
            )


def request(context: Context, arguments: argparse.Namespace, wanted: Output) -> Request:
    """Return what the command line asks for, checked against the manifest."""
    loaded = manifest.load(context.manifest_path)
    entry = loaded.distribution(arguments.distribution)
    if arguments.transformer_engine == "yes" and arguments.accelerator == "cpu":
        raise UserError(
            "Transformer Engine needs CUDA",
            "--transformer-engine",
            "give --accelerator cuda12 or cuda13, or leave it out",
        )
    asked = image_build.Request(
        context,
        loaded,
        arguments.distribution,
        arguments.accelerator,
        image_target.platforms(arguments.platform, entry.architectures, wanted.kind),
        arguments.transformer_engine != "no" and arguments.accelerator != "cpu",
        arguments.compression or wanted.compression,
        arguments.base,
        arguments.engine,
        local=wanted.kind in ("image", "oci") and not arguments.locked,
    )
    image_build.check(asked)
    return asked


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command where the output is an image."""
    wanted = image_target.parse(arguments.output, arguments.distribution, arguments.accelerator)
    if arguments.python:
        raise UserError(
            "an image has its base's Python",
            "--python",
            "leave it out, or choose the base by --base",
        )
    if arguments.since and wanted.kind != "bundle":
        raise UserError("goes with bundle:DIR", "--since", "leave it out")
    if arguments.compression == "zstd" and wanted.kind in ("bundle", "registry"):
        log.warn("an enroot before 4.0 cannot read zstd layers")
    asked = request(context, arguments, wanted)
    if arguments.dry_run:
        return _dry_run(asked, wanted)
    destination = delivery.destination(
        wanted, asked, arguments.since
    )  # what it cannot take is refused before anything is made
    built = image_build.build(asked)
    delivered = destination(built)
    data = report(built) | {"output": arguments.output, "name": wanted.name, **delivered}
    return Result(data, text(data))


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


def text(data: dict[str, Any]) -> str:
    """Return the same for people."""
    lines = [
        (
            f"{data['distribution']} ({data['accelerator']}) is in {data['output']}, index "
            f"{data['digest']}"
        )
    ]
    for image in data["images"]:
        lines.append(f"  {image['platform']}  {image['size'] / 1e6:,.1f} MB  {image['digest']}")
        lines += [
            (
                f"    {each['name']:<12}{each['size'] / 1e6:>10,.1f} "
                f"MB{each['unpacked'] / 1e6:>10,.1f} MB unpacked"
            )
            for each in image["layers"]
        ]
    return "\n".join([*lines, *data.get("next", [])])


def _dry_run(asked: Request, wanted: Output) -> Result:
    steps = image_build.steps(asked)
    shown = "\n".join(f"{'done ' if step['done'] else 'to do'}  {step['stage']}" for step in steps)
    return Result(
        {
            "distribution": asked.distribution,
            "accelerator": asked.accelerator,
            "output": wanted.kind,
            "steps": steps,
        },
        shown,
    )
