"""Collect the images to publish: one for each architecture that the manifest lists.

The images are read from OCI layouts, or built now. All must be from the same build.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name

from builder.core import manifest
from builder.images import image_build, image_settings, image_target, inspection
from builder.images.oci import layer, layout, oci_documents
from builder.packages import licences
from builder.pipeline import image_output
from rosetta.core.errors import CONFLICT, DIFFERS, EXISTS, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.oci.layer import Layer
    from builder.images.oci.oci_documents import Index

# What the architectures of one index must have in common.
_COMMON_KEYS = ("distribution", "accelerator", "line", "builder", "compression", "requirements")
_COMMON_SOURCE_KEYS = ("commit", "patched_commit", "exported_tree")
_INCOMPLETE = (
    "a tag has all architectures of the manifest: leave --platform out, or build each with "
    "--output oci:DIR on a machine of its own and publish all oci:DIR at once,"
    " or list fewer architectures in the manifest"
)


@dataclass(frozen=True)
class PublishableIndex:
    """An index over the images of all architectures.

    Attributes:
        manifest: The manifest of the checkout.
        index: The index.
        records: The `lock.json` of each image, by its architecture.
        blob_path: Returns the file of a blob by its digest.
        licences: The licence of each project, by architecture and canonical name.
    """

    manifest: Manifest
    index: Index
    records: dict[str, dict[str, Any]]
    blob_path: Callable[[str], Path]
    licences: dict[str, dict[str, str]]

    @property
    def distribution(self) -> str:
        """The distribution."""
        return str(next(iter(self.records.values()))["distribution"])

    @property
    def accelerator(self) -> str:
        """The accelerator."""
        return str(next(iter(self.records.values()))["accelerator"])

    @property
    def title(self) -> str:
        """The distribution and the accelerator."""
        return f"{self.distribution}-{self.accelerator}"


def collect_images(
    context: Context, options: image_output.Options, names: Sequence[str]
) -> PublishableIndex:
    """Return the images to publish.

    Args:
        context: The context of the builder's command.
        options: The options of a build.
        names: One distribution, which is built, or any number of oci:DIR. DIR is a layout, or a
            folder with a layout for each of some architectures.

    Raises:
        UserError: the images must not be published.
    """
    loaded = manifest.load(context.manifest_path)
    if all(name.startswith("oci:") for name in names):
        folders = [Path(name.removeprefix("oci:")).absolute() for name in names]
        layouts = [place for folder in folders for place in _find_layouts(folder)]
        return read_layouts(loaded, layouts)
    if len(names) == 1:
        return _build_images(context, loaded, options, names[0])
    raise UserError(
        "only image layouts may be several",
        " ".join(names),
        "give one distribution, or oci:DIR for each architecture",
    )


def _find_layouts(folder: Path) -> list[Path]:
    """Return the layouts in a folder, or the folder if it is a layout, or has none."""
    marks = [] if (folder / "index.json").exists() else sorted(folder.glob("*/index.json"))
    return [mark.parent for mark in marks] or [folder]


def _build_images(
    context: Context, loaded: Manifest, options: image_output.Options, distribution: str
) -> PublishableIndex:
    target = image_target.Output("registry", "")
    request = image_output.make_request(context, distribution, options, target)
    check_architectures(loaded, request.distribution, request.accelerator, request.architectures)
    built = image_build.build_image(request)
    blob_path = functools.partial(layer.blob_path, context.cache)
    opened = inspection.InspectedImage(
        built.index.images,
        built.index.digest,
        lambda _, image_layer: open(blob_path(image_layer.digest), "rb"),  # noqa: SIM115 - InspectedImage.open closes it
    )
    licences = {image.architecture: read_licences(opened, image) for image in built.index.images}
    return PublishableIndex(loaded, built.index, built.records, blob_path, licences)


@dataclass
class _LayoutContents:
    """The images of one or more layouts, by architecture, and the files of their blobs."""

    images: dict[str, oci_documents.Image] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    licences: dict[str, dict[str, str]] = field(default_factory=dict)
    blobs: dict[str, Path] = field(default_factory=dict)

    def add(self, folder: Path, index: Index) -> None:
        """Add all images of a layout."""

        def open_layer(_: oci_documents.Image, image_layer: Layer) -> Any:
            return open(layout.blob_path(folder, image_layer), "rb")

        opened = inspection.InspectedImage(index.images, index.digest, open_layer)
        for image in index.images:
            architecture = image.architecture
            if architecture in self.images:
                raise UserError(
                    f"has linux/{architecture}, as another of the layouts does",
                    str(folder),
                    "give each architecture once",
                    kind=EXISTS,
                    value=architecture,
                )
            record = opened.lock(image)
            _check_locked(record, f"{folder} (linux/{architecture})")
            self.images[architecture] = image
            self.records[architecture] = record
            self.licences[architecture] = read_licences(opened, image)
            for image_layer in image.layers:
                self.blobs[image_layer.digest] = layout.blob_path(folder, image_layer)


def read_layouts(loaded: Manifest, folders: Sequence[Path]) -> PublishableIndex:
    """Read the images of OCI layouts.

    If there is only one layout, its index is published as it is. Otherwise each layout has some
    architectures, and they get a new index.

    Args:
        loaded: The manifest.
        folders: The layouts.

    Raises:
        UserError: the images must not be published.
    """
    contents = _LayoutContents()
    documents = []
    for folder in folders:
        index = layout.read_layout(folder).index
        contents.add(folder, index)
        documents.append(index.document)
    records = contents.records
    try:
        _check_same_build(records, str(folders[0]))
        first = next(iter(records.values()))
        check_architectures(loaded, first["distribution"], first["accelerator"], contents.images)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"its lock.json has no {error}",
            str(folders[0]),
            "give an image that this builder built",
        ) from error
    annotations = _join_annotations(contents)
    joined = oci_documents.make_index(list(contents.images.values()), annotations)
    if len(folders) == 1:
        joined = oci_documents.Index(joined.images, documents[0])
    return PublishableIndex(
        loaded, joined, dict(sorted(records.items())), contents.blobs.__getitem__, contents.licences
    )


def _join_annotations(contents: _LayoutContents) -> dict[str, str]:
    """Return the annotations of an index over images: those that all images have.

    The licences of the index are those of all images.
    """
    annotations = [
        dict(json.loads(image.manifest).get("annotations") or {})
        for image in contents.images.values()
    ]
    common = set.intersection(*(set(document.items()) for document in annotations))
    declared = [name for names in contents.licences.values() for name in names.values()]
    terms = licences.list_spdx_terms([*declared, licences.BASE_LICENCES])
    return dict(common) | {"org.opencontainers.image.licenses": " AND ".join(terms)}


def _check_locked(record: dict[str, Any], where: str) -> None:
    """Refuse an image with Debian packages that are not locked."""
    replaced_count = image_build.count_replaced(record)
    if replaced_count:
        raise UserError(
            f"was built with {replaced_count} Debian packages that are newer than the locked "
            "ones, and only what is locked is published",
            where,
            "python build.py lock --base, then build it again",
            kind=CONFLICT,
            value=replaced_count,
        )


def read_licences(opened: inspection.InspectedImage, image: oci_documents.Image) -> dict[str, str]:
    """Return the licence that an image declares for each project, by its canonical name.

    The result is empty if the image has no index of licences.
    """
    path = f"{image_settings.HOME}/LICENSES/index.json"
    try:
        entries = json.loads(opened.read(image, path) or b"{}").get("licences", [])
        return {canonicalize_name(entry["name"]): str(entry["licence"]) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "its index of licences is not a valid one",
            f"the image for linux/{image.architecture}",
            "give an image that this builder built",
        ) from error


def check_architectures(
    loaded: Manifest, distribution: str, accelerator: str, architectures: Iterable[str]
) -> None:
    """Check that these are exactly the architectures that the manifest lists.

    Raises:
        UserError: they are not, or the distribution is not built for the accelerator.
    """
    entry, given = loaded.distribution(distribution), list(architectures)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            "publish",
            f"one of: {', '.join(entry.accelerators)}",
        )
    missing = [name for name in entry.architectures if name not in given]
    if missing:
        platforms = " and ".join(f"linux/{name}" for name in missing)
        raise UserError(
            f"{platforms} of {distribution}-{accelerator} is missing",
            "publish",
            _INCOMPLETE,
            kind=MISSING,
            value=missing[0],
        )
    others = [name for name in given if name not in entry.architectures]
    if others:
        raise UserError(
            f"{distribution} is not listed for linux/{', linux/'.join(others)}",
            "publish",
            "list the architecture in the manifest, or leave it out",
        )


def _check_same_build(records: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Check that the images of all architectures are from the same build.

    Args:
        records: The `lock.json` of each image, by its architecture.
        where: The layout, for errors.
    """
    first_architecture, first = next(iter(records.items()))
    for architecture, record in records.items():
        different = [key for key in _COMMON_KEYS if record[key] != first[key]]
        for source, state in first["sources"].items():
            other_state = record["sources"].get(source, {})
            different += [
                f"sources.{source}.{key}"
                for key in _COMMON_SOURCE_KEYS
                if other_state.get(key) != state[key]
            ]
        if different:
            raise UserError(
                f"linux/{architecture} is from another build than linux/{first_architecture}: "
                f"{different[0]} differs",
                where,
                "build them from the same commit of rosetta",
                kind=DIFFERS,
                value=different[0],
            )
