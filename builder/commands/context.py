"""The command `context`: write the layers of an image as folders, to build on with `docker build`.

Dockerfile.t5x and Dockerfile.pax copy these folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.commands import image_options
from builder.core.accelerators import ACCELERATORS
from builder.core.command_context import Context, Result
from builder.images import image_target
from builder.pipeline import build_context, image_output

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument("distribution", metavar="NAME", help="the distribution, such as t5x or pax")
    parser.add_argument(
        "folder", metavar="DIR", help="the folder that gets one folder for each layer"
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=ACCELERATORS,
        help="CPUs, or GPUs of this CUDA version (default: cpu)",
    )
    image_options.add_arguments(parser)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    folder = Path(arguments.folder).absolute()
    build_context.refuse_foreign_folder(folder)
    image_target.require_folder_above(folder, "context DIR")
    request = image_output.make_request(
        context,
        arguments.distribution,
        image_options.read_image_options(arguments),
        image_target.Output("image", ""),
    )
    architecture, labels = build_context.write_context(request, folder)
    recipe = context.root / f"Dockerfile.{'t5x' if arguments.distribution == 't5x' else 'pax'}"
    command = build_context.render_build_command(folder, recipe, arguments.distribution)
    return Result(
        {
            "folder": str(folder),
            "recipe": str(recipe),
            "platform": f"linux/{architecture}",
            "labels": labels,
        },
        f"{folder} is ready. Build the image with an engine:\n  {command}",
    )
