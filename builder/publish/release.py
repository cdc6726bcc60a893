"""What is to be published: an image of every architecture that the manifest lists, all of one build, from layouts or made now."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import manifest
from builder.errors import FatalError
from builder.image import command, inspect, layer, layout, make, oci, output, runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.image.oci import Index
    from builder.manifest import Manifest
    from builder.verb import Context

# What the architectures of one index must have in common.
_SAME = ("distribution", "accelerator", "line", "builder", "compression", "requirements")
_OF_SOURCE = ("commit", "patched_commit", "exported_tree")


@dataclass(frozen=True)
class Release:
    """An index, the lock.json of each architecture, and where its blobs lie on disk."""

    manifest: Manifest
    index: Index
    records: dict[str, dict[str, Any]]
    blob: Callable[[str], Path]

    @property
    def title(self) -> str:
        return f"{next(iter(self.records.values()))['distribution']}-{next(iter(self.records.values()))['accelerator']}"


def made(context: Context, arguments: argparse.Namespace, names: Sequence[str]) -> Release:
    """The distribution or the oci:DIR that `names` are, checked. Raises FatalError for what may not be published."""
    loaded = manifest.load(context.manifest_path)
    if all(name.startswith("oci:") for name in names):
        found = of_layouts(loaded, [Path(name.removeprefix("oci:")).absolute() for name in names])
    elif len(names) == 1:
        asked = command.request(context, argparse.Namespace(**vars(arguments), distribution=names[0]), output.Output("registry", ""))
        complete(loaded, asked.distribution, asked.accelerator, asked.architectures)
        built = make.build(asked)
        found = Release(loaded, built.index, built.records, functools.partial(layer.blob, context.cache))
    else:
        raise FatalError("only image layouts may be several", " ".join(names), "give one distribution, or oci:DIR for each architecture")
    return found


def of_layouts(loaded: Manifest, folders: Sequence[Path]) -> Release:
    """The image of one or more layouts: as it is where one holds all of it, joined where each holds some architectures."""
    images: dict[str, oci.Image] = {}
    records: dict[str, dict[str, Any]] = {}
    places: dict[str, Path] = {}
    documents = []
    for folder in folders:
        read = layout.read(folder)
        found = inspect.Found(read.index.images, read.index.digest, lambda _, one, folder=folder: open(layout.blob(folder, one), "rb"))  # type: ignore[misc]  # noqa: SIM115 - Found.open closes it
        for image in read.index.images:
            if image.architecture in images:
                raise FatalError(f"holds linux/{image.architecture}, as another of the layouts does", str(folder), "give each architecture once")
            images[image.architecture] = image
            records[image.architecture] = found.lock(image)
            places |= {each.digest: layout.blob(folder, each) for each in image.layers}
        documents.append(read.index.document)
    try:
        first = _alike(records, str(folders[0]))
        complete(loaded, first["distribution"], first["accelerator"], tuple(images))
    except (KeyError, TypeError, AttributeError) as error:
        raise FatalError(f"its lock.json has no {error}", str(folders[0]), "it is no image that this builder made") from error
    joined = oci.index(list(images.values()), runtime.annotated(records[min(records)]))
    index = oci.Index(joined.images, documents[0]) if len(folders) == 1 else joined
    return Release(loaded, index, dict(sorted(records.items())), lambda digest: places[digest])


def complete(loaded: Manifest, distribution: str, accelerator: str, architectures: Sequence[str]) -> None:
    """FatalError unless these are the architectures that the manifest lists, no more and no less."""
    entry = loaded.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise FatalError(f"{distribution} is not built for {accelerator}", "publish", f"one of: {', '.join(entry.accelerators)}")
    if missing := [each for each in entry.architectures if each not in architectures]:
        raise FatalError(f"{' and '.join(f'linux/{each}' for each in missing)} of {distribution}-{accelerator} is missing", "publish", "build it too: a tag has all architectures of the manifest or is not moved")
    if more := [each for each in architectures if each not in entry.architectures]:
        raise FatalError(f"{distribution} is not listed for linux/{', linux/'.join(more)}", "publish", "list it in the manifest, or leave it out")


def _alike(records: dict[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """The first lock.json; FatalError where another architecture's is that of another build."""
    architecture, first = next(iter(records.items()))
    for name, record in records.items():
        different = [key for key in _SAME if record[key] != first[key]]
        different += [f"sources.{source}.{key}" for source, state in first["sources"].items() for key in _OF_SOURCE if record["sources"].get(source, {}).get(key) != state[key]]
        if different:
            raise FatalError(f"linux/{name} is of another build than linux/{architecture}: {different[0]} differs", where, "build them of one commit of rosetta")
    return first
