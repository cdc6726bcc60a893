"""Write an image as a bundle for a site without internet.

A bundle is a folder with an OCI layout (image/), bundle.json for programs, contents.tsv with the
same for the script, which cannot read JSON, SHA256SUMS, README.txt, and the script import.sh. The
script is the same in every bundle: everything that depends on the image is data.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.oci import layout, oci_documents
from builder.images.oci.reference import is_digest
from builder.packages import environment_assembly
from rosetta.core.errors import EXISTS, TOO_BIG, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from builder.core.cache import Cache
    from builder.images.oci.layer import Layer
    from builder.images.oci.oci_documents import Image, Index
    from builder.images.oci.tar_entry import Entry

SCHEMA = 1
_TEMPLATES = Path(__file__).parent
_BUNDLE_FILES = frozenset(
    {"image", "bundle.json", "contents.tsv", "SHA256SUMS", "README.txt", "import.sh"}
)
_IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._/:-]*")
_CHOOSE_ANOTHER_PLACE = "give a new or an empty place; nothing was touched"
_GIVE_RECORD = "give the lock.json or bundle.json of what the site has, or an image layout"


@dataclass(frozen=True)
class KnownLayers:
    """The layers that a site has already."""

    digests: frozenset[str]
    origin: dict[str, str]  # how the builder knows, for bundle.json


def write_bundle(
    cache: Cache,
    index: Index,
    folder: Path,
    *,
    name: str,
    records: Mapping[str, Any] | None = None,
    since: KnownLayers | None = None,
) -> dict[str, Any]:
    """Write the bundle of an image, and replace a bundle that the builder wrote there before.

    The bundle is written completely or not at all.

    Args:
        cache: The cache that has the image's blobs.
        index: The image.
        folder: The folder to write.
        name: The name and tag of the image.
        records: The lock.json of each architecture.
        since: The layers that the site has already; the bundle leaves them out.

    Returns:
        What --json reports: the path, the bytes written, the layers left out, and what to do next.

    Raises:
        UserError: Something else is there, or the disk has no room. Nothing was touched.
    """
    if not _IMAGE_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a valid name of an image",
            str(folder),
            "give lower-case letters, digits, and . _ - / : between them",
        )
    known_layers = since or KnownLayers(frozenset(), {})
    with environment_assembly.lock_output(folder) as place:
        require_replaceable(place)
        left_out = _find_left_out(index, known_layers)
        if since and not left_out:
            log.warn("no layer of this image is among those that the site has: the bundle is whole")
        blobs = [
            entry
            for entry in layout.list_entries(cache, index, name)
            if f"sha256:{entry.path.rpartition('/')[2]}" not in left_out
        ]
        documents = _make_documents(index, name, records or {}, known_layers, left_out)
        documents["SHA256SUMS"] = _format_checksums(blobs, documents)
        if not _is_current(place, blobs, documents):
            _require_space(place, blobs)
            _write_files(place, blobs, documents)
    return _describe_result(place, sum(entry.size for entry in blobs), list(left_out.values()))


def _find_left_out(index: Index, known_layers: KnownLayers) -> dict[str, Layer]:
    """Return the layers that the site has already, by digest."""
    return {
        layer.digest: layer
        for image in index.images
        for layer in image.layers
        if layer.digest in known_layers.digests
    }


def _describe_result(place: Path, size: int, left_out: list[Layer]) -> dict[str, Any]:
    """Return what --json reports of a bundle with `size` bytes."""
    note = ""
    if left_out:
        left_out_size = sum(layer.size for layer in left_out)
        note = (
            f"; {len(left_out)} layers that the site has "
            f"({left_out_size / 1e6:,.1f} MB) are left out"
        )
    return {
        "path": str(place),
        "written": size,
        "left_out": [_describe_left_out(layer) for layer in left_out],
        "next": [
            f"{place} has {size / 1e6:,.1f} MB{note}; copy it to the site and run ./import.sh check"
        ],
    }


def _describe_left_out(layer: Layer) -> dict[str, Any]:
    return {"name": layer.name, "digest": layer.digest, "size": layer.size}


def _write_files(place: Path, blobs: Iterable[Entry], documents: Mapping[str, bytes]) -> None:
    """Write the files of a bundle, and then put it in its place at once."""
    with environment_assembly.replace_path(place) as new:
        (new / "image/blobs/sha256").mkdir(parents=True)
        _write_layout_files(blobs, new / "image")
        for name, content in documents.items():
            (new / name).write_bytes(content)
            os.chmod(new / name, 0o755 if name.endswith(".sh") else 0o644)
        for name in ("image/blobs/sha256", "image/blobs", "image", ""):
            os.chmod(new / name, 0o755)  # noqa: S103 - others may read it, whatever the umask


def _format_checksums(blobs: Iterable[Entry], documents: Mapping[str, bytes]) -> bytes:
    """Return SHA256SUMS. The name of a blob is its checksum, which `_write_layout_files` checks."""
    checksums = {}
    for entry in blobs:
        if entry.data is not None:
            checksums[f"image/{entry.path}"] = hashlib.sha256(entry.data).hexdigest()
        else:
            checksums[f"image/{entry.path}"] = entry.path.rpartition("/")[2]
    for name, content in documents.items():
        checksums[name] = hashlib.sha256(content).hexdigest()
    return "".join(f"{checksums[name]}  {name}\n" for name in sorted(checksums)).encode()


def _is_current(place: Path, blobs: Iterable[Entry], documents: Mapping[str, bytes]) -> bool:
    """Return whether a place has this bundle: equal documents, and every blob with its size."""
    try:
        for name, content in documents.items():
            if (place / name).read_bytes() != content:
                return False
        return all(os.stat(place / "image" / blob.path).st_size == blob.size for blob in blobs)
    except OSError:
        return False


def require_replaceable(place: Path) -> None:
    """Raise UserError unless a place is free, or has a bundle that the builder wrote."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError("is not a folder", str(place), _CHOOSE_ANOTHER_PLACE, kind=EXISTS)
    if not place.exists() or not any(place.iterdir()):
        return
    try:
        is_bundle = json.loads((place / "bundle.json").read_bytes())["bundle"] == "rosetta"
    except (OSError, ValueError, KeyError, TypeError):
        is_bundle = False
    if not is_bundle or not {path.name for path in place.iterdir()} <= _BUNDLE_FILES:
        raise UserError(
            "holds files that are not a bundle of rosetta's",
            str(place),
            _CHOOSE_ANOTHER_PLACE,
            kind=EXISTS,
        )


def read_known_layers(name: str) -> KnownLayers:
    """Return the layers that a site has.

    Args:
        name: The path of a lock.json, a bundle, its bundle.json, or an OCI layout.

    Raises:
        UserError: The path is none of these.
    """
    path = Path(name).absolute()
    if path.is_dir() and (path / "index.json").is_file():
        index = layout.read_layout(path, blobs=False).index
        return KnownLayers(
            frozenset(layer.digest for image in index.images for layer in image.layers),
            {"kind": "layout", "index": index.digest},
        )
    file = path / "bundle.json" if path.is_dir() else path
    try:
        content = file.read_bytes()
        document = json.loads(content)
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", str(file), _GIVE_RECORD) from error
    except (ValueError, RecursionError) as error:
        raise UserError("is not JSON", str(file), _GIVE_RECORD) from error
    digests = frozenset(str(layer.get("digest")) for layer in _list_layers(document))
    if not digests or not all(map(is_digest, digests)):
        raise UserError("lists no layers", str(file), _GIVE_RECORD)
    kind = "bundle" if "bundle" in document else "lock"
    return KnownLayers(digests, {"kind": kind, "sha256": hashlib.sha256(content).hexdigest()})


def _list_layers(document: Any) -> list[dict[str, Any]]:
    """Return the layers that a bundle.json or a lock.json lists; none if it has another form."""
    if not isinstance(document, dict):
        return []
    images = document.get("images") if "bundle" in document else [document]
    layers: list[Any] = []
    for image in images if isinstance(images, list) else []:
        listed = image.get("layers") if isinstance(image, dict) else None
        if isinstance(listed, list):
            layers += listed
    return [layer for layer in layers if isinstance(layer, dict)]


def _require_space(place: Path, blobs: Iterable[Entry]) -> None:
    """Raise UserError if the disk has no room for the blobs."""
    existing = next(path for path in (place, *place.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    needed = sum(blob.size for blob in blobs)
    if needed > free:
        raise UserError(
            f"the bundle needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free",
            str(place),
            "make room; nothing was touched",
            kind=TOO_BIG,
        )


def _write_layout_files(entries: Iterable[Entry], folder: Path) -> None:
    """Write the files of a layout in a few threads; each blob is compared with its digest."""

    def write(entry: Entry) -> None:
        target = folder / entry.path
        if entry.data is not None:
            target.write_bytes(entry.data)
            os.chmod(target, 0o644)
        else:
            layout.copy_blob(entry, target)

    with concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(write, entries))


def _make_documents(
    index: Index,
    name: str,
    records: Mapping[str, Any],
    known_layers: KnownLayers,
    left_out: Mapping[str, Layer],
) -> dict[str, bytes]:
    """Return the files beside the layout, except SHA256SUMS, by name."""
    document = {
        "bundle": "rosetta",
        "schema": SCHEMA,
        "name": name,
        "index": index.digest,
        "images": [
            _describe_image(image, records.get(image.architecture), left_out)
            for image in index.images
        ],
        "left_out": [_describe_left_out(layer) for layer in left_out.values()],
        "since": known_layers.origin or None,
    }
    return {
        "bundle.json": (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(),
        "contents.tsv": _format_contents(index, name, left_out),
        "import.sh": (_TEMPLATES / "import.sh").read_bytes(),
        "README.txt": _format_readme(index, name, left_out).encode(),
    }


def _describe_image(image: Image, record: Any, left_out: Mapping[str, Layer]) -> dict[str, Any]:
    """Return what bundle.json says of the image of one architecture; `record` is its lock.json."""
    return {
        "architecture": image.architecture,
        "platform": oci_documents.make_platform(image.architecture),
        "manifest": image.digest,
        "config": image.config_digest,
        "size": image.size,
        "layers": [
            {
                "name": layer.name,
                "diff_id": layer.diff_id,
                "digest": layer.digest,
                "size": layer.size,
                "unpacked": layer.unpacked,
                "here": layer.digest not in left_out,
            }
            for layer in image.layers
        ],
        "lock": record,
    }


def _format_contents(index: Index, name: str, left_out: Mapping[str, Layer]) -> bytes:
    """Return contents.tsv: what import.sh needs to know, one row for each image and layer."""
    rows: list[tuple[object, ...]] = [
        ("bundle", SCHEMA),
        ("name", name),
        ("index", index.digest, len(index.document)),
    ]
    for image in index.images:
        rows.append(
            (
                "image",
                image.architecture,
                oci_documents.make_platform(image.architecture).get("variant", "-"),
                image.digest,
                len(image.manifest),
                image.config_digest,
                len(image.config),
            )
        )
        rows += [
            (
                "layer",
                image.architecture,
                layer.name,
                layer.digest,
                layer.size,
                layer.unpacked,
                layer.diff_id,
                "site" if layer.digest in left_out else "here",
            )
            for layer in image.layers
        ]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def _format_readme(index: Index, name: str, left_out: Mapping[str, Layer]) -> str:
    template = (_TEMPLATES / "offline-bundle-readme.txt").read_text(encoding="utf-8")
    values = {
        "NAME": name,
        "INDEX": index.digest,
        "PLATFORMS": ", ".join(f"linux/{image.architecture}" for image in index.images),
        "LEFT_OUT": _format_left_out(left_out.values()),
        "FILE": re.sub(r"[^a-z0-9.-]+", "-", name),
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match.group(1)], template)


def _format_left_out(layers: Collection[Layer]) -> str:
    """Return the paragraph of README.txt about layers that are left out; empty without any."""
    if not layers:
        return ""
    lines = [
        f"  {layer.name:<12} {layer.size / 1e6:>10,.1f} MB  {layer.digest}\n" for layer in layers
    ]
    return (
        "\nThe following layers are not in this bundle, because the site has them. Add --with "
        "OLDER to every\nline below. OLDER is the folder of the bundle or OCI layout that has the "
        "layers:\n"
    ) + "".join(lines)
