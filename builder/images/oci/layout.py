"""OCI image layouts: folders or tars, written completely or not at all, and read with checks."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from builder.core.file_copies import copy_file
from builder.images.oci import layer, oci_documents, tar_file
from builder.images.oci.tar_entry import Entry, make_file
from builder.packages import environment_assembly
from rosetta.core.errors import DAMAGED, EXISTS, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Image, Index

_LAYOUT_MARKER = oci_documents.encode_json({"imageLayoutVersion": "1.0.0"})
_NAME_ANNOTATION = "org.opencontainers.image.ref.name"
_ROSETTA_ANNOTATION = "io.rosetta.layout"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_INDEX_TYPES = (oci_documents.INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFEST_TYPES = (oci_documents.MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
_CHOOSE_ANOTHER_PLACE = "give a new or an empty place; nothing was touched"
_COPY_AGAIN = "copy the layout again, whole"


@dataclass(frozen=True)
class Layout:
    """A layout that was read: its folder, the name that it gives its image, and the image.

    The layers have no key, and their `unpacked` is 0: a layout does not record them.
    """

    folder: Path
    name: str
    index: Index


def _encode_top_index(described: dict[str, Any], annotations: dict[str, str]) -> bytes:
    """Return index.json for one descriptor; the annotation of rosetta marks the layout."""
    return oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.INDEX,
            "manifests": [{**described, "annotations": annotations}],
            "annotations": {_ROSETTA_ANNOTATION: "1"},
        }
    )


def _blob_name(digest: str) -> str:
    """Return the path of a blob relative to the layout."""
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _collect_documents(index: Index) -> dict[str, bytes]:
    """Return the index, the manifests and the configs by their digests."""
    documents = {index.digest: index.document}
    for image in index.images:
        documents |= {image.digest: image.manifest, image.config_digest: image.config}
    return documents


def list_entries(cache: Cache, index: Index, name: str) -> list[Entry]:
    """Return the files of a layout; the blobs of layers are files of the cache.

    Args:
        cache: The cache that has the image's layers.
        index: The image.
        name: The name that the layout gives the image.
    """
    blobs = {}
    for digest, data in _collect_documents(index).items():
        blobs[_blob_name(digest)] = make_file(_blob_name(digest), data)
    for image in index.images:
        for image_layer in image.layers:
            blobs[_blob_name(image_layer.digest)] = _blob_entry(cache, image_layer)
    described = oci_documents.make_descriptor(oci_documents.INDEX, index.document)
    return [
        make_file("oci-layout", _LAYOUT_MARKER),
        make_file("index.json", _encode_top_index(described, {_NAME_ANNOTATION: name})),
        *(blobs[path] for path in sorted(blobs)),
    ]


def _blob_entry(cache: Cache, image_layer: layer.Layer) -> Entry:
    """Return the entry of a layer's blob. Raises UserError if the cache lacks it."""
    source = layer.blob_path(cache, image_layer.digest)
    if not source.is_file() or source.stat().st_size != image_layer.size:
        raise UserError(
            f"the blob of layer {image_layer.name} is not whole in the cache",
            str(source),
            "run again: the builder makes the blob again",
            kind=MISSING,
        )
    return Entry(
        _blob_name(image_layer.digest),
        "file",
        0o644,
        source=str(source),
        size=image_layer.size,
        sha256=image_layer.digest.removeprefix("sha256:"),
    )


def fill_folder(cache: Cache, index: Index, folder: Path, *, name: str) -> None:
    """Write a layout into an empty folder; the copy of each blob is compared with its digest."""
    (folder / "blobs/sha256").mkdir(parents=True)
    for entry in list_entries(cache, index, name):
        if entry.data is not None:
            (folder / entry.path).write_bytes(entry.data)
        else:
            copy_blob(entry, folder / entry.path)


def copy_blob(blob: Entry, target: Path) -> None:
    """Copy a blob of the cache. Raises UserError if the copy does not have the blob's digest."""
    copy_file(blob.source, target)
    with open(target, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != blob.sha256:
            raise UserError(
                f"blob {blob.sha256[:12]}… is damaged",
                blob.source,
                "delete that file and build again",
                kind=DAMAGED,
            )


def write_layout(cache: Cache, index: Index, place: Path, *, name: str) -> None:
    """Write the layout of an image, and replace a layout that the builder wrote there before.

    Args:
        cache: The cache that has the image's layers.
        index: The image.
        place: The folder to write, or the file if the path ends in .tar.
        name: The name that the layout gives the image.

    Raises:
        UserError: Something else is there. Nothing was touched.
    """
    with environment_assembly.lock_output(place) as locked_place:
        require_replaceable(locked_place)
        with environment_assembly.replace_path(locked_place) as new:
            if locked_place.suffix == ".tar":
                with open(new, "wb") as out:
                    entries = list_entries(cache, index, name)
                    tar_file.write_tar(entries, tar_file.PlainSink(out))
            else:
                new.mkdir()
                fill_folder(cache, index, new, name=name)


def is_current(cache: Cache, index: Index, place: Path, name: str) -> bool:
    """Return whether the layout at a place is this image under this name.

    The documents are compared, and of blobs the sizes. Of a tar, only the first two entries and
    the size of the file are compared.
    """
    entries = list_entries(cache, index, name)
    try:
        if place.suffix == ".tar":
            return _is_current_tar(entries, place)
        for entry in entries:
            file = place / entry.path
            if entry.data is not None and file.read_bytes() != entry.data:
                return False
            if entry.data is None and file.stat().st_size != entry.size:
                return False
    except OSError:
        return False
    return True


def _is_current_tar(entries: list[Entry], file: Path) -> bool:
    head = b"".join(
        tar_file.encode_header(entry)
        + (entry.data or b"")
        + bytes(-entry.size % tar_file.BLOCK_SIZE)
        for entry in entries[:2]
    )
    size = 2 * tar_file.BLOCK_SIZE
    for entry in entries:
        size += len(tar_file.encode_header(entry)) + entry.size
        size += -entry.size % tar_file.BLOCK_SIZE
    with open(file, "rb") as stream:
        return file.stat().st_size == size and stream.read(len(head)) == head


def require_replaceable(place: Path) -> None:
    """Raise UserError unless a place is free, or has a layout that the builder wrote."""
    if place.suffix == ".tar":
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise UserError("is not a file", str(place), _CHOOSE_ANOTHER_PLACE)
        if place.exists() and place.stat().st_size and not _is_rosetta_tar(place):
            raise UserError(
                "is a file that is not an image layout of rosetta's",
                str(place),
                _CHOOSE_ANOTHER_PLACE,
                kind=EXISTS,
            )
        return
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError("is not a folder", str(place), _CHOOSE_ANOTHER_PLACE, kind=EXISTS)
    if not place.exists() or not any(place.iterdir()):
        return
    if not _is_rosetta_folder(place):
        raise UserError(
            "holds files that are not an image layout of rosetta's",
            str(place),
            _CHOOSE_ANOTHER_PLACE,
            kind=EXISTS,
        )


def _is_rosetta_folder(folder: Path) -> bool:
    """Return whether a folder has a layout of the builder, and nothing else."""
    try:
        index = json.loads((folder / "index.json").read_bytes())
        is_marked = _ROSETTA_ANNOTATION in index["annotations"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    names = {path.name for path in folder.iterdir()}
    return is_marked and names <= {"oci-layout", "index.json", "blobs"}


def _is_rosetta_tar(file: Path) -> bool:
    with open(file, "rb") as stream:
        head = stream.read(8 * tar_file.BLOCK_SIZE)
    return head[:11] == b"oci-layout\0" and _ROSETTA_ANNOTATION.encode() in head


def write_archive(
    cache: Cache, image: Image, name: str, out: IO[bytes], leave_out: Collection[str] = ()
) -> None:
    """Write the image of one platform as a tar for `docker load` and `podman load`.

    The tar is an OCI layout and has docker's older form (manifest.json), too.

    Args:
        cache: The cache that has the image's layers.
        image: The image.
        name: The name and tag that the engine gives the image.
        out: The file or pipe to write to.
        leave_out: Digests of layers that the engine already has.
    """
    described = {
        **oci_documents.make_descriptor(oci_documents.MANIFEST, image.manifest),
        "platform": oci_documents.make_platform(image.architecture),
    }
    annotations = {
        "io.containerd.image.name": qualify_name(name),
        _NAME_ANNOTATION: name.rpartition(":")[2],
    }
    docker_manifest = [
        {
            "Config": _blob_name(image.config_digest),
            "RepoTags": [name],
            "Layers": [_blob_name(image_layer.digest) for image_layer in image.layers],
        }
    ]
    blobs = {
        _blob_name(image_layer.digest): _blob_entry(cache, image_layer)
        for image_layer in image.layers
        if image_layer.digest not in leave_out
    }
    for digest, data in ((image.digest, image.manifest), (image.config_digest, image.config)):
        blobs[_blob_name(digest)] = make_file(_blob_name(digest), data)
    entries = [
        make_file("oci-layout", _LAYOUT_MARKER),
        make_file("index.json", _encode_top_index(described, annotations)),
        make_file("manifest.json", json.dumps(docker_manifest, sort_keys=True)),
        Entry("blobs", "dir", 0o755),
        Entry("blobs/sha256", "dir", 0o755),
        *(blobs[path] for path in sorted(blobs)),
    ]
    tar_file.write_tar(entries, tar_file.PlainSink(out))


def qualify_name(name: str) -> str:
    """Return an image's name with its registry; engines assume docker.io if it names none."""
    host, slash, _ = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def read_layout(folder: Path, *, blobs: bool = True) -> Layout:
    """Read a layout of one image, whichever program wrote it.

    Args:
        folder: The folder of the layout.
        blobs: Whether to compare each layer with its digest, too; documents always are.

    Raises:
        UserError: Something is missing, incomplete or changed.
    """
    top = _parse_object(folder, "index.json", _read_file(folder, "index.json"))
    described = _require_list(folder, top, "manifests")
    if len(described) == 1 and described[0].get("mediaType") in _INDEX_TYPES:
        document = _read_document(folder, described[0])
        index = _parse_object(folder, "the index", document)
        manifests = _require_list(folder, index, "manifests")
    else:
        document = _read_file(folder, "index.json")
        manifests = described
    images = tuple(
        _read_image(folder, manifest, blobs=blobs)
        for manifest in manifests
        if manifest.get("mediaType") in _MANIFEST_TYPES and _is_image(manifest)
    )
    if not images:
        raise UserError("the image layout has no image", str(folder), "make it again", kind=MISSING)
    annotations = described[0].get("annotations") or {}
    name = str(annotations.get(_NAME_ANNOTATION, ""))
    return Layout(folder, name, oci_documents.Index(images, document))


def blob_path(folder: Path, image_layer: layer.Layer) -> Path:
    """Return the path of a layer's blob in a layout."""
    return folder / _blob_name(image_layer.digest)


def _is_image(described: dict[str, Any]) -> bool:
    """Return whether a manifest is an image, not an attestation that an engine put beside it."""
    return (described.get("platform") or {}).get("os") != "unknown"


def _read_image(folder: Path, described: dict[str, Any], *, blobs: bool) -> Image:
    manifest = _read_document(folder, described)
    content = _parse_object(folder, "a manifest", manifest)
    config = _read_document(folder, content.get("config"))
    settings = _parse_object(folder, "a config", config)
    described_layers = _require_list(folder, content, "layers")
    try:
        architecture = str(settings["architecture"])
        diff_ids = [str(diff_id) for diff_id in settings["rootfs"]["diff_ids"]]
        names = _list_layer_names(settings, len(described_layers))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "the config of the image is not valid", str(folder), "make it again"
        ) from error
    if len(diff_ids) != len(described_layers):
        raise UserError(
            f"the image has {len(described_layers)} layers, and its config {len(diff_ids)}",
            str(folder),
            "make it again",
        )
    layers = []
    for name, diff_id, described_layer in zip(names, diff_ids, described_layers, strict=True):
        digest, size = _parse_descriptor(folder, described_layer)
        if blobs:
            _verify_blob(folder, digest, size)
        media_type = str(described_layer.get("mediaType", ""))
        layers.append(layer.Layer(name, diff_id, digest, size, 0, media_type, ""))
    return oci_documents.Image(architecture, tuple(layers), config, manifest)


def _list_layer_names(settings: dict[str, Any], count: int) -> list[str]:
    """Return the names of the layers by the history of a config; empty ones if it does not fit."""
    history = [
        str(step.get("created_by", ""))
        for step in settings.get("history") or []
        if not step.get("empty_layer")
    ]
    if len(history) != count:
        return [""] * count
    return [text.removeprefix("rosetta: ") for text in history]


def _read_file(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UserError(
            f"{name} of the image layout cannot be read ({error.strerror})",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
            value=name,
        ) from error


def _parse_object(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    """Return a JSON object; `folder` and `name` are for errors."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(
            f"{name} of the image layout is not JSON",
            str(folder),
            _COPY_AGAIN,
            kind=INVALID,
            value=name,
        )
    return value


def _require_list(folder: Path, document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"the image layout has no list of {key}", str(folder), _COPY_AGAIN)
    return value


def _parse_descriptor(folder: Path, described: Any) -> tuple[str, int]:
    """Return the digest and the size in bytes that a descriptor names."""
    fields = described if isinstance(described, dict) else {}
    digest, size = fields.get("digest"), fields.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or not isinstance(size, int):
        raise UserError(
            "the image layout names something without sha256 and size", str(folder), _COPY_AGAIN
        )
    return digest, size


def _read_document(folder: Path, described: Any) -> bytes:
    """Return the document of a descriptor. Raises UserError if it does not have its digest."""
    digest, size = _parse_descriptor(folder, described)
    data = _read_file(folder, _blob_name(digest))
    if len(data) != size or oci_documents.compute_digest(data) != digest:
        raise _damaged_error(folder, digest)
    return data


def _verify_blob(folder: Path, digest: str, size: int) -> None:
    """Raise UserError if a blob, which may be large, does not have its size and digest."""
    try:
        with open(folder / _blob_name(digest), "rb") as stream:
            if os.fstat(stream.fileno()).st_size != size:
                raise _damaged_error(folder, digest)
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"blob {digest[7:19]}… cannot be read ({error.strerror})",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
            value=digest,
        ) from error
    if checksum != digest[7:]:
        raise _damaged_error(folder, digest)


def _damaged_error(folder: Path, digest: str) -> UserError:
    return UserError(
        f"blob {digest[7:19]}… is not what its digest says",
        str(folder),
        _COPY_AGAIN,
        kind=DAMAGED,
        value=digest,
    )
