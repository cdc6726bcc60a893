"""Prepare the folders that Dockerfile.t5x and Dockerfile.pax copy: the content of an image's
layers, for people who build their own way.
"""

from __future__ import annotations

import json
import shlex
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.commands import image_options
from builder.core import archives, log
from builder.core.command_context import Context, Result
from builder.images import image_build as images
from builder.images import image_target, layer_assignment
from builder.images.oci import blob_compression, layer
from builder.packages import environment_assembly
from builder.pipeline import image_output
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from builder.core.cache import Cache
    from builder.images.oci.layer import Layer

LAYERS = (*layer_assignment.ORDER, "sources", "rosetta")
_MARK = ".rosetta-context"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument("distribution", metavar="NAME", help="t5x, pax or pax-1.4")
    parser.add_argument("folder", metavar="DIR", help="where the folders go")
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=["cpu", "cuda12", "cuda13"],
        help="what it will run on (default: cpu)",
    )
    image_options.add_arguments(parser)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    folder = Path(arguments.folder).absolute()
    _refuse(folder)
    image_target.require_folder_above(folder, "context DIR")
    asked = image_output.request(
        context,
        arguments.distribution,
        image_options.read(arguments),
        image_target.Output("image", ""),
    )
    if len(asked.architectures) != 1:
        raise UserError(
            "a context is for one platform", "--platform", "give linux/amd64 or linux/arm64"
        )
    built = images.build(asked)
    (image,) = built.index.images
    labels = json.loads(image.config)["config"]["Labels"]
    with (
        environment_assembly.locked(folder) as place,
        environment_assembly.exchanged(place) as fresh,
        log.stage(f"unpack the layers into {folder}"),
    ):
        for name in LAYERS:
            (fresh / name).mkdir(parents=True)
        for each in image.layers:
            if each.name in LAYERS:
                unpack(context.cache, each, fresh / each.name)
        (fresh / "labels").write_text(label_lines(labels), encoding="utf-8")
        (fresh / _MARK).touch()
    recipe = context.root / f"Dockerfile.{'t5x' if arguments.distribution == 't5x' else 'pax'}"
    lines = (
        f"{folder} is ready. An engine makes an image of it:\n  "
        f"{build_command(folder, recipe, arguments.distribution)}"
    )
    return Result(
        {
            "folder": str(folder),
            "recipe": str(recipe),
            "platform": f"linux/{image.architecture}",
            "labels": labels,
        },
        lines,
    )


def label_lines(labels: Mapping[str, str]) -> str:
    """Return the content of the file `labels`: one argument of `docker build` a line."""
    return "".join(f"--label={key}={value}\n" for key, value in sorted(labels.items()))


def build_command(folder: Path, recipe: Path, distribution: str) -> str:
    """Return the shell command that makes an image of the folder: each line of the file `labels` is
    one argument.
    """
    argv = ["xargs", "-d", r"\n", "-a", f"{folder}/labels", "docker", "build", "-f", str(recipe)]
    return shlex.join(
        [*argv, "--build-arg", "BASE=my-base", "-t", f"my-{distribution}", str(folder)]
    )


def _refuse(folder: Path) -> None:
    if folder.is_symlink() or (
        folder.exists()
        and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARK).exists()))
    ):
        raise UserError(
            "holds files that are no context of ours",
            str(folder),
            "give a new or an empty folder; nothing was touched",
        )


def unpack(cache: Cache, each: Layer, into: Path) -> None:
    """Write the files of one layer below `into`, with their modes."""
    with (
        open(layer.blob(cache, each.digest), "rb") as packed,
        blob_compression.reader(packed) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        archives.extract_verified(archive, into, keep_modes=True)
