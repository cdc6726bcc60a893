"""Write the layers of an image as the folders that Dockerfile.t5x and Dockerfile.pax copy."""

from __future__ import annotations

import json
import shlex
import tarfile
from typing import TYPE_CHECKING

from builder.core import archives, log
from builder.images import image_build, layer_assignment
from builder.images.oci import blob_compression
from builder.images.oci import layer as image_layer
from builder.packages import environment_assembly
from rosetta.core.errors import EXISTS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.image_build import ImageRequest
    from builder.images.oci.layer import Layer

# The folders of a context; the parts of a divided layer are in one folder.
FOLDERS = tuple(dict.fromkeys(map(layer_assignment.find_group, layer_assignment.LAYERS)))
_MARK = ".rosetta-context"  # the empty file by which a later run knows a folder of its own


def write_context(request: ImageRequest, folder: Path) -> tuple[str, dict[str, str]]:
    """Build an image and unpack its layers into a folder.

    Args:
        request: The image. It must be for one architecture.
        folder: The build context for `docker build`. An earlier context in it is replaced.

    Returns:
        The image's architecture and its labels.

    Raises:
        UserError: the request names several platforms.
    """
    if len(request.architectures) != 1:
        raise UserError(
            "a build context is for one platform",
            "--platform",
            "give linux/amd64 or linux/arm64",
        )
    (image,) = image_build.build_image(request).index.images
    labels = json.loads(image.config)["config"]["Labels"]
    with (
        environment_assembly.lock_output(folder) as locked_folder,
        environment_assembly.replace_path(locked_folder) as new_folder,
        log.stage(f"unpack the layers into {folder}"),
    ):
        for name in FOLDERS:
            (new_folder / name).mkdir(parents=True)
        for layer in image.layers:
            if layer.name in layer_assignment.LAYERS:
                group = layer_assignment.find_group(layer.name)
                unpack_layer(request.cache, layer, new_folder / group)
        (new_folder / "labels").write_text(render_labels(labels), encoding="utf-8")
        (new_folder / _MARK).touch()
    return image.architecture, labels


def refuse_foreign_folder(folder: Path) -> None:
    """Raise UserError for a folder that holds anything but an earlier build context."""
    if not folder.exists() and not folder.is_symlink():
        return
    is_plain_folder = folder.is_dir() and not folder.is_symlink()
    if is_plain_folder and ((folder / _MARK).exists() or not any(folder.iterdir())):
        return
    raise UserError(
        "holds files that are not a build context of rosetta",
        str(folder),
        "give a new or an empty folder; nothing was touched",
        kind=EXISTS,
    )


def render_labels(labels: Mapping[str, str]) -> str:
    """Return the content of the file `labels`: on each line one argument of `docker build`."""
    return "".join(f"--label={key}={value}\n" for key, value in sorted(labels.items()))


def render_build_command(folder: Path, recipe: Path, distribution: str) -> str:
    """Return the shell command that builds an image from a context.

    Each line of the context's file `labels` becomes one argument of `docker build`.
    """
    argv = ["xargs", "-d", r"\n", "-a", f"{folder}/labels", "docker", "build", "-f", str(recipe)]
    return shlex.join(
        [*argv, "--build-arg", "BASE=my-base", "-t", f"my-{distribution}", str(folder)]
    )


def unpack_layer(cache: Cache, layer: Layer, folder: Path) -> None:
    """Write the files of one layer below a folder, with their modes."""
    with (
        open(image_layer.blob_path(cache, layer.digest), "rb") as packed,
        blob_compression.decompress_stream(packed) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        archives.extract_verified(archive, folder, keep_modes=True)
