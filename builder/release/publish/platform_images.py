"""What is to be published: an image of every architecture that the manifest lists, all of one
build, from layouts or made now.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from builder.core import manifest
from builder.images import image_build, image_settings, image_target, inspection
from builder.images.oci import layer, layout, oci_documents
from builder.pipeline import image_output
from rosetta.core.errors import CONFLICT, DIFFERS, EXISTS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.oci.oci_documents import Index

# What the architectures of one index must have in common.
_SAME = ("distribution", "accelerator", "line", "builder", "compression", "requirements")
_INCOMPLETE = (
    "a tag has all architectures of the manifest: leave --platform out, or build each with "
    "--output oci:DIR on a machine of its own and publish all oci:DIR at once,"
    " or list fewer architectures in the manifest"
)
_OF_SOURCE = ("commit", "patched_commit", "exported_tree")


@dataclass(frozen=True)
class Release:
    """An index, for each architecture its lock.json and the licences of its projects, and where its
    blobs lie on disk.
    """

    manifest: Manifest
    index: Index
    records: dict[str, dict[str, Any]]
    blob: Callable[[str], Path]
    licences: dict[str, dict[str, str]]

    @property
    def title(self) -> str:
        record = next(iter(self.records.values()))
        return f"{record['distribution']}-{record['accelerator']}"


def made(context: Context, options: image_output.Options, names: Sequence[str]) -> Release:
    """Return the distribution or the oci:DIR that `names` are, checked.

    Raises UserError for what may not be published.
    """
    loaded = manifest.load(context.manifest_path)
    if all(name.startswith("oci:") for name in names):
        found = of_layouts(loaded, [Path(name.removeprefix("oci:")).absolute() for name in names])
    elif len(names) == 1:
        asked = image_output.make_request(
            context,
            names[0],
            options,
            image_target.Output("registry", ""),
        )
        complete(loaded, asked.distribution, asked.accelerator, asked.architectures)
        built = image_build.build_image(asked)
        blob = functools.partial(layer.blob_path, context.cache)
        shown = inspection.InspectedImage(
            built.index.images,
            built.index.digest,
            lambda _, one: open(blob(one.digest), "rb"),  # noqa: SIM115 - Found.open closes it
        )
        licences = {image.architecture: read_licences(shown, image) for image in built.index.images}
        found = Release(loaded, built.index, built.records, blob, licences)
    else:
        raise UserError(
            "only image layouts may be several",
            " ".join(names),
            "give one distribution, or oci:DIR for each architecture",
        )
    return found


def of_layouts(loaded: Manifest, folders: Sequence[Path]) -> Release:
    """Return the image of one or more layouts: as it is where one holds all of it, joined where
    each holds some architectures.
    """
    images: dict[str, oci_documents.Image] = {}
    records: dict[str, dict[str, Any]] = {}
    places: dict[str, Path] = {}
    licences: dict[str, dict[str, str]] = {}
    documents = []
    for folder in folders:
        read = layout.read_layout(folder)
        found = inspection.InspectedImage(
            read.index.images,
            read.index.digest,
            lambda _, one, folder=folder: open(layout.blob_path(folder, one), "rb"),  # type: ignore[misc]  # noqa: SIM115 - Found.open closes it
        )
        for image in read.index.images:
            if image.architecture in images:
                raise UserError(
                    f"holds linux/{image.architecture}, as another of the layouts does",
                    str(folder),
                    "give each architecture once",
                    kind=EXISTS,
                    value=image.architecture,
                )
            images[image.architecture] = image
            records[image.architecture] = found.lock(image)
            if replaced := image_build.count_replaced(records[image.architecture]):
                raise UserError(
                    (
                        f"was built with {replaced} Debian packages that are newer than the "
                        "locked ones, and only what is locked is published"
                    ),
                    f"{folder} (linux/{image.architecture})",
                    "python build.py lock --base, then build it again",
                    kind=CONFLICT,
                    value=replaced,
                )
            licences[image.architecture] = read_licences(found, image)
            places |= {each.digest: layout.blob_path(folder, each) for each in image.layers}
        documents.append(read.index.document)
    try:
        first = _alike(records, str(folders[0]))
        complete(loaded, first["distribution"], first["accelerator"], tuple(images))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"its lock.json has no {error}",
            str(folders[0]),
            "it is no image that this builder made",
        ) from error
    joined = oci_documents.make_index(
        list(images.values()), image_settings.make_annotations(records[min(records)])
    )
    index = oci_documents.Index(joined.images, documents[0]) if len(folders) == 1 else joined
    return Release(
        loaded, index, dict(sorted(records.items())), lambda digest: places[digest], licences
    )


def read_licences(found: inspection.InspectedImage, image: oci_documents.Image) -> dict[str, str]:
    """Return the licence that an image declares for each project, by its canonical name; nothing
    where it has no index of them.
    """
    try:
        rows = json.loads(
            found.read(image, f"{image_settings.HOME}/LICENSES/index.json") or b"{}"
        ).get("licences", [])
        return {canonicalize_name(row["name"]): str(row["licence"]) for row in rows}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = f"the image for linux/{image.architecture}"
        raise UserError(
            "its index of licences is not a valid one",
            where,
            "it is not an image that this builder made",
        ) from error


def complete(
    loaded: Manifest, distribution: str, accelerator: str, architectures: Sequence[str]
) -> None:
    """UserError unless these are the architectures that the manifest lists, no more and no
    less.
    """
    entry = loaded.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            "publish",
            f"one of: {', '.join(entry.accelerators)}",
        )
    if missing := [each for each in entry.architectures if each not in architectures]:
        raise UserError(
            (
                f"{' and '.join(f'linux/{each}' for each in missing)} of "
                f"{distribution}-{accelerator} is missing"
            ),
            "publish",
            _INCOMPLETE,
            kind=MISSING,
            value=missing[0],
        )
    if more := [each for each in architectures if each not in entry.architectures]:
        raise UserError(
            f"{distribution} is not listed for linux/{', linux/'.join(more)}",
            "publish",
            "list it in the manifest, or leave it out",
        )


def _alike(records: dict[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """Return the first lock.json; UserError where another architecture's is that of another
    build.
    """
    architecture, first = next(iter(records.items()))
    for name, record in records.items():
        different = [key for key in _SAME if record[key] != first[key]]
        different += [
            f"sources.{source}.{key}"
            for source, state in first["sources"].items()
            for key in _OF_SOURCE
            if record["sources"].get(source, {}).get(key) != state[key]
        ]
        if different:
            raise UserError(
                (
                    f"linux/{name} is of another build than linux/{architecture}: {different[0]} "
                    "differs"
                ),
                where,
                "build them of one commit of rosetta",
                kind=DIFFERS,
                value=different[0],
            )
    return first
