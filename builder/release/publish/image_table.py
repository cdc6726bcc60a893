"""The README's table of images, and the record of published images that the table is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.accelerators import ACCELERATORS
from builder.images.oci import reference
from builder.images.registry import download
from builder.images.registry.transport import Connection
from builder.images.registry.upload import format_size
from builder.release.publish import image_variants, tags
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.core.manifest import Manifest

RECORD = "locks/published-images.json"
_START = "<!-- The table of images is written by `python build.py docs`. -->\n"
_END = "<!-- End of the table of images. -->\n"


def read_images(manifest: Manifest, namespace: str) -> dict[str, Any]:
    """Return the newest nightly images of a registry, for the record.

    Args:
        manifest: The manifest, whose distributions and accelerators are looked for.
        namespace: HOST/NAMESPACE, below which each distribution has a repository.

    Returns:
        The namespace, and for each distribution and accelerator the day, the digest and the bytes
        to download for each platform. What is not published is left out.
    """
    images: dict[str, dict[str, Any]] = {}
    for name, distribution in manifest.distributions.items():
        repository = reference.parse_reference(f"{namespace}/{name}")
        with Connection(repository, "pull") as connection:
            for accelerator in distribution.accelerators:
                if image := _read_image(connection, accelerator):
                    images.setdefault(name, {})[accelerator] = image
    return {"namespace": namespace, "images": images}


def _read_image(connection: Connection, accelerator: str) -> dict[str, Any]:
    """Return the record of the newest nightly image, or nothing if there is none."""
    suffix = image_variants.find_suffix(accelerator)
    date = tags.find_newest_nightly(connection, suffix, tags.read_today())
    if not date:
        log.info(f"{connection.reference.repository} has no nightly image for {accelerator}")
        return {}
    tag = tags.Position(date, suffix=suffix).tag
    index = download.read_document(connection, tag)
    try:
        sizes = {
            str(descriptor["platform"]["architecture"]): _measure_image(
                connection, str(descriptor["digest"])
            )
            for descriptor in index.json()["manifests"]
        }
    except (KeyError, TypeError) as error:
        raise UserError(
            f"is not an image that build.py publish put there: no {error}",
            f"{connection.reference.repository}:{tag}",
            "delete the tag, or give another --images",
            kind=INVALID,
        ) from error
    return {"date": date, "digest": index.digest, "sizes": sizes}


def _measure_image(connection: Connection, digest: str) -> int:
    """Return the bytes of the config and the layers of one architecture's image."""
    manifest = download.read_document(connection, digest).json()
    return sum(int(blob["size"]) for blob in (manifest["config"], *manifest["layers"]))


def render_readme(text: str, manifest: Manifest, record: Mapping[str, Any]) -> str:
    """Return the README with the table of images of a record.

    Args:
        text: The README.
        manifest: The manifest, which has the distributions, accelerators and Pythons.
        record: What `read_images` returned, or nothing if no image is published.

    Raises:
        UserError: the README has no place for the table.
    """
    head, start, rest = text.partition(_START)
    _, end, tail = rest.partition(_END)
    if not start or not end:
        raise UserError(
            "has no place for the table of images",
            "README.md",
            f"put the lines {_START.strip()} and {_END.strip()} into it",
            kind=INVALID,
        )
    table = "\n".join(_list_table_lines(manifest, record))
    return f"{head}{start}\n{table}\n\n{end}{tail}"


def _list_table_lines(manifest: Manifest, record: Mapping[str, Any]) -> Iterator[str]:
    namespace, images = record.get("namespace", "ghcr.io/OWNER"), record.get("images", {})
    yield "| distribution | for | image | Python | size of a pull | night | digest |"
    yield "|---|---|---|---|---|---|---|"
    for name, distribution in manifest.distributions.items():
        python = manifest.lines[distribution.line].python
        for accelerator in sorted(distribution.accelerators, key=ACCELERATORS.index, reverse=True):
            tag = f"latest{image_variants.find_suffix(accelerator)}"
            target = "CPUs" if accelerator == "cpu" else f"GPUs, CUDA {accelerator[4:]}"
            cells = [f"`{name}`", target, f"`{namespace}/{name}:{tag}`", python]
            image = images.get(name, {}).get(accelerator)
            yield f"| {' | '.join([*cells, *_list_image_cells(image)])} |"


def _list_image_cells(image: Mapping[str, Any] | None) -> list[str]:
    if not image:
        return ["not published", "", ""]
    sizes = [f"{format_size(size)} ({name})" for name, size in sorted(image["sizes"].items())]
    return ["<br>".join(sizes), str(image["date"]), f"`{image['digest'][:19]}…`"]
