"""Build an image again from its own lock, and name the first difference.

No layer of the new build is taken from the cache.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.cache import Cache
from builder.images import image_build, inspection
from builder.images.oci import blob_compression
from builder.images.oci import layer as image_layer
from builder.upstream.checkout import Publisher
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from builder.core.command_context import Context
    from builder.images.inspection import InspectedImage
    from builder.images.oci.layer import Layer
    from builder.images.oci.oci_documents import Image

_CHECK_OUT = "check out the commit of rosetta that the image was built from"
# Places in lock.json that must be equal before a rebuild can be equal, and the remedy for each.
_INPUTS = (
    ("builder", _CHECK_OUT),
    ("requirements.sha256", f"{_CHECK_OUT}: its locks are other ones"),
    ("base.digest", "give the same --base"),
    ("base.python", "give the same --base"),
    (
        "transformer_engine.wheel_sha256",
        "bring that wheel: python build.py wheel transformer-engine --import FILE --sha256 ...",
    ),
)
_SOURCE_INPUTS = ("commit", "patched_commit", "exported_tree")
_NOT_OURS = "the image was not made by this builder"


@dataclass(frozen=True)
class _TarEntry:
    """What a tar archive records of one path; the names are those that a report shows."""

    type: bytes
    mode: int
    owner: tuple[int, int]
    target: str
    size: int
    content: str
    time: float


def reproduce_image(context: Context, image_name: str, base: str, engine: str) -> dict[str, Any]:
    """Build an image again and compare the result with the image.

    Args:
        context: The context of the command.
        image_name: The image, as `inspection.open_image` takes it.
        base: The base that was given when the image was built; empty if none was given.
        engine: The container engine that has the image and builds the base; empty for the first
            that answers.

    Returns:
        Whether both are the same, the digests, and the first difference, for --json.

    Raises:
        UserError: this checkout does not have the inputs that the image was built from.
    """
    with (
        tempfile.TemporaryDirectory(
            prefix=".tmp-reproduce-", dir=context.cache.path("blobs")
        ) as scratch,
        inspection.open_image(image_name, engine, Path(scratch)) as original,
    ):
        locks = {image.architecture: original.lock(image) for image in original.images}
        request = _make_request(context, image_name, base, engine, locks)
        new_layers = Cache(Path(scratch, "cache"))
        request = replace(request, layers=new_layers, publisher=_read_publisher(original))
        _require_same_inputs(locks, request)
        with log.stage(f"build {request.distribution}-{request.accelerator} again"):
            rebuilt = image_build.build_image(request).index
        difference = _describe_difference(original, rebuilt.images, (new_layers, context.cache))
        digest = original.digest or original.images[0].config_digest
        is_same = not difference and original.digest in ("", rebuilt.digest)
    return {
        "image": image_name,
        "digest": digest,
        "rebuilt": rebuilt.digest,
        "same": is_same,
        "difference": difference,
    }


def _make_request(
    context: Context,
    image_name: str,
    asked_base: str,
    engine: str,
    locks: dict[str, dict[str, Any]],
) -> image_build.ImageRequest:
    """Return the build request that the locks of an image describe, by architecture."""
    lock = next(iter(locks.values()))
    try:
        distribution, accelerator = str(lock["distribution"]), str(lock["accelerator"])
        base, compression = str(lock["base"]["name"]), str(lock["compression"])
    except (KeyError, TypeError) as error:
        raise UserError(f"its lock.json has no {error}", image_name, _NOT_OURS) from error
    if compression not in blob_compression.MEDIA_TYPES:
        raise UserError(
            f"its lock.json names the compression {compression[:20]!r}", image_name, _NOT_OURS
        )
    _refuse_projects(image_name, lock)
    _refuse_replaced_packages(image_name, locks)
    if base.startswith("bootstrap:"):
        base = "bootstrap"
    request = image_build.ImageRequest(
        context,
        manifest.load(context.manifest_path),
        distribution,
        accelerator,
        tuple(locks),
        bool(lock.get("transformer_engine")),
        compression,
        asked_base or base,
        engine,
    )
    image_build.check_request(request)
    return request


def _read_publisher(original: InspectedImage) -> Publisher:
    """Return the publisher that the labels of an image name. No layer depends on the publisher."""
    labels = json.loads(original.images[0].config).get("config", {}).get("Labels") or {}
    prefix = "org.opencontainers.image."
    return Publisher(labels.get(f"{prefix}source", ""), labels.get(f"{prefix}revision", ""))


def _refuse_projects(image_name: str, lock: dict[str, Any]) -> None:
    """Raise UserError for an image with projects: the build of this command has none."""
    if projects := lock.get("projects"):
        raise UserError(
            f"has the projects {', '.join(projects)}, which reproduce does not build",
            image_name,
            "give an image without projects",
            kind=UNSUPPORTED,
        )


def _refuse_replaced_packages(image_name: str, locks: dict[str, dict[str, Any]]) -> None:
    """Raise UserError for an image with Debian packages that are newer than the locked ones."""
    replaced_count = max(image_build.count_replaced(lock) for lock in locks.values())
    if replaced_count:
        raise UserError(
            f"was built with {replaced_count} Debian packages that are newer than the locked ones, "
            "because the locked ones were no longer available",
            image_name,
            "the image cannot be built again from the locks; build a new image after "
            "python build.py lock --base",
        )


def _require_same_inputs(
    locks: dict[str, dict[str, Any]], request: image_build.ImageRequest
) -> None:
    """Raise UserError for the first input of the image that this checkout does not have."""
    resolved = image_build.resolve_image(request)
    for architecture, lock in locks.items():
        record = resolved.record(architecture)
        for place, remedy in _list_inputs(lock):
            image_value, value = _read_place(lock, place), _read_place(record, place)
            if image_value != value:
                raise UserError(
                    f"{'.'.join(place)} is {value} here and {image_value} in the image "
                    f"(linux/{architecture})",
                    "lock.json",
                    remedy,
                )


def _list_inputs(lock: dict[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """Return the places in lock.json that must be equal, as keys, and the remedy for each."""
    inputs = [(tuple(place.split(".")), remedy) for place, remedy in _INPUTS]
    for name in lock.get("sources") or {}:
        inputs += [(("sources", name, key), _CHECK_OUT) for key in _SOURCE_INPUTS]
    return inputs


def _read_place(record: dict[str, Any], place: tuple[str, ...]) -> Any:
    value: Any = record
    for key in place:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _describe_difference(
    original: InspectedImage, rebuilt_images: tuple[Image, ...], caches: tuple[Cache, ...]
) -> str:
    """Describe the first difference, from the lowest layer up; empty if there is none.

    Args:
        original: The image.
        rebuilt_images: The images of the new build, in the same order of platforms.
        caches: Where the blobs of the new build are.
    """
    for image, rebuilt in zip(original.images, rebuilt_images, strict=True):
        difference = _compare_layers(original, image, rebuilt, caches)
        difference = difference or _compare_documents(original, image, rebuilt)
        if difference:
            return f"linux/{image.architecture}{difference}"
    return ""


def _compare_layers(
    original: InspectedImage, image: Image, rebuilt: Image, caches: tuple[Cache, ...]
) -> str:
    for layer, rebuilt_layer in zip(image.layers, rebuilt.layers, strict=False):
        if layer.diff_id != rebuilt_layer.diff_id:
            with original.open(image, layer) as blob:
                entries = _read_entries(blob)
            path = _find_blob(rebuilt_layer, caches)
            return f", layer {rebuilt_layer.name}: {_compare_entries(entries, path)}"
        if original.digest and layer.digest != rebuilt_layer.digest:
            return f", layer {rebuilt_layer.name}: the same files in other compressed bytes"
    if len(image.layers) != len(rebuilt.layers):
        return f": {len(image.layers)} layers in the image, {len(rebuilt.layers)} rebuilt"
    return ""


def _compare_documents(original: InspectedImage, image: Image, rebuilt: Image) -> str:
    if image.config != rebuilt.config:
        config, rebuilt_config = json.loads(image.config), json.loads(rebuilt.config)
        for key in sorted({*config, *rebuilt_config}):
            if config.get(key) != rebuilt_config.get(key):
                return f", config: {key}"
        return ", config: its bytes"
    if original.digest and image.manifest != rebuilt.manifest:
        return ": the manifest"
    return ""


def _find_blob(layer: Layer, caches: tuple[Cache, ...]) -> Path | None:
    paths = (image_layer.blob_path(cache, layer.digest) for cache in caches)
    return next((path for path in paths if path.is_file()), None)


def _compare_entries(entries: dict[str, _TarEntry], rebuilt_blob: Path | None) -> str:
    """Describe the first path by which two layers differ."""
    if rebuilt_blob is None:
        return "other content"
    with open(rebuilt_blob, "rb") as blob:
        rebuilt_entries = _read_entries(blob)
    for path in sorted({*entries, *rebuilt_entries}):
        if path not in rebuilt_entries:
            return f"{path} is in the image only"
        if path not in entries:
            return f"{path} is in the rebuilt image only"
        entry, rebuilt_entry = vars(entries[path]), vars(rebuilt_entries[path])
        properties = [name for name in entry if entry[name] != rebuilt_entry[name]]
        if properties:
            return f"{path}: another {' and '.join(properties)}"
    return "the order or the form of its entries"


def _read_entries(blob: IO[bytes]) -> dict[str, _TarEntry]:
    """Return the entries of a compressed tar archive by path."""
    entries = {}
    with (
        blob_compression.decompress_stream(blob) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            entries[member.name] = _TarEntry(
                type=member.type,
                mode=member.mode,
                owner=(member.uid, member.gid),
                target=member.linkname,
                size=member.size,
                content=hashlib.file_digest(file, "sha256").hexdigest() if file else "",  # type: ignore[arg-type]
                time=member.mtime,
            )
    return entries
