"""Write the layers of an image as the folders that Dockerfile.t5x and Dockerfile.pax copy."""

from __future__ import annotations

import json
import shlex
import tarfile
from typing import TYPE_CHECKING

from builder.core import archives, log
from builder.images import image_build as images
from builder.images import layer_assignment
from builder.images.oci import blob_compression, layer
from builder.packages import environment_assembly
from rosetta.core.errors import EXISTS, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.image_build import Request
    from builder.images.oci.layer import Layer

LAYERS = (*layer_assignment.ORDER, "sources", "rosetta")
_MARK = ".rosetta-context"


def write_context(asked: Request, folder: Path) -> tuple[str, dict[str, str]]:
    """Build the image and unpack its layers into a folder; return its architecture and labels."""
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
                unpack(asked.cache, each, fresh / each.name)
        (fresh / "labels").write_text(label_lines(labels), encoding="utf-8")
        (fresh / _MARK).touch()
    return image.architecture, labels


def refuse(folder: Path) -> None:
    """Raise UserError for a folder that holds anything but an earlier context."""
    if folder.is_symlink() or (
        folder.exists()
        and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MARK).exists()))
    ):
        raise UserError(
            "holds files that are no context of ours",
            str(folder),
            "give a new or an empty folder; nothing was touched",
            kind=EXISTS,
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


def unpack(cache: Cache, each: Layer, into: Path) -> None:
    """Write the files of one layer below `into`, with their modes."""
    with (
        open(layer.blob(cache, each.digest), "rb") as packed,
        blob_compression.reader(packed) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        archives.extract_verified(archive, into, keep_modes=True)
