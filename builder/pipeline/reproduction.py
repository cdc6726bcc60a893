"""Build an image again from its own lock, with nothing of it taken from the cache of layers, and
name the first difference.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.cache import Cache
from builder.images import image_build as images
from builder.images import inspection
from builder.images.oci import blob_compression, layer
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.core.command_context import Context
    from builder.images.inspection import Found
    from builder.images.oci.oci_documents import Image

# What must be the same before a rebuild can be: the place in lock.json, and how to come by it.
_INPUTS = (
    ("builder", "check out the commit of rosetta that the image was built from"),
    (
        "requirements.sha256",
        "check out the commit of rosetta that the image was built from: its locks are other ones",
    ),
    ("base.digest", "give the same --base"),
    ("base.python", "give the same --base"),
    (
        "transformer_engine.wheel_sha256",
        "bring that wheel: python build.py wheel transformer-engine --import FILE --sha256 ...",
    ),
)
_SOURCE = ("commit", "patched_commit", "exported_tree")


def reproduce(context: Context, image: str, base: str, engine: str) -> dict[str, Any]:
    """Build an image again; return whether it is the same, and the first difference, for --json.

    Args:
        context: of the command.
        image: which, as `inspection.find` takes it.
        base: what it stands on, where that was given when it was built; else empty.
        engine: whose image it is, and what builds the base; empty for the first that answers.
    """
    with (
        tempfile.TemporaryDirectory(
            prefix=".tmp-reproduce-", dir=context.cache.path("blobs")
        ) as scratch,
        inspection.find(image, engine, Path(scratch)) as found,
    ):
        locks = {each.architecture: found.lock(each) for each in found.images}
        asked = request(context, image, base, engine, found, locks)
        fresh = replace(asked, layers=Cache(Path(scratch, "cache")))
        resolved = images.resolve(asked)
        for architecture, record in locks.items():
            _same_inputs(record, resolved.record(architecture), architecture)
        with log.stage(f"build {asked.distribution}-{asked.accelerator} again"):
            built = images.build(fresh)
        difference = _difference(
            context.cache, fresh.layers or context.cache, found, built.index.images
        )
        digest = found.digest or found.images[0].config_digest
        same = not difference and found.digest in ("", built.index.digest)
    return {
        "image": image,
        "digest": digest,
        "rebuilt": built.index.digest,
        "same": same,
        "difference": difference,
    }


def request(
    context: Context,
    image: str,
    given_base: str,
    engine: str,
    found: Found,
    locks: dict[str, dict[str, Any]],
) -> images.Request:
    """Return the build that would give this image, by its lock."""
    record = next(iter(locks.values()))
    try:
        name, accelerator, base, compression = (
            str(each)
            for each in (
                record["distribution"],
                record["accelerator"],
                record["base"]["name"],
                record["compression"],
            )
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"its lock.json has no {error}",
            image,
            "it is no image that this builder made",
        ) from error
    loaded = manifest.load(context.manifest_path)
    architectures = tuple(each.architecture for each in found.images)
    if compression not in blob_compression.MEDIA_TYPE:
        raise UserError(
            f"its lock.json names the compression {compression[:20]!r}",
            image,
            "it is no image that this builder made",
        )
    if replaced := max(images.count_replaced(each) for each in locks.values()):
        raise UserError(
            (
                f"was built with {replaced} Debian packages that are newer than the locked ones, "
                "which were gone"
            ),
            image,
            (
                "it cannot be built again from the locks; build it anew after python build.py "
                "lock --base"
            ),
        )
    if base.startswith("bootstrap:"):
        base = "bootstrap"
    asked = images.Request(
        context,
        loaded,
        name,
        accelerator,
        architectures,
        bool(record.get("transformer_engine")),
        compression,
        given_base or base,
        engine,
    )
    images.check(asked)
    return asked


def _same_inputs(image: dict[str, Any], here: dict[str, Any], architecture: str) -> None:
    """UserError that names the first input of the image which this checkout does not have."""

    def at(record: dict[str, Any], place: str) -> Any:
        value: Any = record
        for part in place.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    places = [
        *_INPUTS,
        *(
            (
                f"sources.{name}.{key}",
                "check out the commit of rosetta that the image was built from",
            )
            for name in image.get("sources", {})
            for key in _SOURCE
        ),
    ]
    for place, do in places:
        # A source's name may hold dots, its record does not.
        one, other = (
            _source(record, place) if place.startswith("sources.") else at(record, place)
            for record in (image, here)
        )
        if one != other:
            raise UserError(
                f"{place} is {other} here and {one} in the image (linux/{architecture})",
                "lock.json",
                do,
            )


def _source(record: dict[str, Any], place: str) -> Any:
    name, _, key = place.removeprefix("sources.").rpartition(".")
    return (record.get("sources") or {}).get(name, {}).get(key)


def _difference(cache: Cache, fresh: Cache, found: Found, rebuilt: tuple[Image, ...]) -> str:
    """Describe the first difference, from the lowest layer up; empty if there is none."""
    for theirs, ours in zip(found.images, rebuilt, strict=True):
        where = f"linux/{theirs.architecture}"
        for one, other in zip(theirs.layers, ours.layers, strict=False):
            if one.diff_id != other.diff_id:
                return (
                    f"{where}, layer {other.name}: "
                    f"{_entry(found, theirs, one, cache, fresh, other)}"
                )
            if found.digest and one.digest != other.digest:
                return f"{where}, layer {other.name}: the same files in other compressed bytes"
        if len(theirs.layers) != len(ours.layers):
            return f"{where}: {len(theirs.layers)} layers in the image, {len(ours.layers)} rebuilt"
        if theirs.config != ours.config:
            one, other = json.loads(theirs.config), json.loads(ours.config)
            keys = (key for key in sorted({*one, *other}) if one.get(key) != other.get(key))
            return f"{where}, config: {next(keys, 'its bytes')}"
        if found.digest and theirs.manifest != ours.manifest:
            return f"{where}: the manifest"
    return ""


def _entry(
    found: Found, image: Image, one: layer.Layer, cache: Cache, fresh: Cache, other: layer.Layer
) -> str:
    """Describe the first path by which two layers differ."""
    mine = next(
        (
            path
            for path in (layer.blob(each, other.digest) for each in (fresh, cache))
            if path.is_file()
        ),
        None,
    )
    if mine is None:
        return "other content"
    with found.open(image, one) as stream:
        theirs = dict(_rows(stream))
    with open(mine, "rb") as stream:
        ours = dict(_rows(stream))
    for path in sorted({*theirs, *ours}):
        if theirs.get(path) != ours.get(path):
            if path not in ours:
                return f"{path} is in the image only"
            if path not in theirs:
                return f"{path} is in the rebuilt one only"
            what = [
                name
                for name, a, b in zip(
                    ("type", "mode", "owner", "target", "size", "content", "time"),
                    theirs[path],
                    ours[path],
                    strict=True,
                )
                if a != b
            ]
            return f"{path}: another {' and '.join(what)}"
    return "the order or the form of its entries"


def _rows(stream: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    with (
        blob_compression.reader(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            digest = hashlib.file_digest(file, "sha256").hexdigest() if file else ""  # type: ignore[arg-type]
            yield (
                member.name,
                (
                    member.type,
                    member.mode,
                    (member.uid, member.gid),
                    member.linkname,
                    member.size,
                    digest,
                    member.mtime,
                ),
            )
