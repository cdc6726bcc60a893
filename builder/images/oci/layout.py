"""An OCI image layout on disk or as one tar: written whole or not at all, and read back with every
digest checked.
"""

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


@dataclass(frozen=True)
class Layout:
    """A layout that was read: the name it gives its image, and the image.

    Layers have no key, and `unpacked` is 0: a layout does not say it.
    """

    folder: Path
    name: str
    index: Index


def _encode_top_index(described: dict[str, Any], annotations: dict[str, str]) -> bytes:
    return oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.INDEX,
            "manifests": [{**described, "annotations": annotations}],
            "annotations": {_ROSETTA_ANNOTATION: "1"},
        }
    )


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _collect_documents(index: Index) -> dict[str, bytes]:
    found = {index.digest: index.document}
    for image in index.images:
        found |= {image.digest: image.manifest, image.config_digest: image.config}
    return found


def list_entries(cache: Cache, index: Index, name: str) -> list[Entry]:
    """Return what a layout holds, by its path: blobs as files of the cache, each once."""
    found = {
        _blob_name(digest): make_file(_blob_name(digest), data)
        for digest, data in _collect_documents(index).items()
    }
    for image in index.images:
        found |= {_blob_name(each.digest): _blob_entry(cache, each) for each in image.layers}
    top = _encode_top_index(
        oci_documents.make_descriptor(oci_documents.INDEX, index.document), {_NAME_ANNOTATION: name}
    )
    return [
        make_file("oci-layout", _LAYOUT_MARKER),
        make_file("index.json", top),
        *(found[path] for path in sorted(found)),
    ]


def _blob_entry(cache: Cache, each: layer.Layer) -> Entry:
    source = layer.blob_path(cache, each.digest)
    if not source.is_file() or source.stat().st_size != each.size:
        raise UserError(
            f"the blob of layer {each.name} is not whole in the cache",
            str(source),
            "run again: it is made again",
            kind=MISSING,
        )
    return Entry(
        _blob_name(each.digest),
        "file",
        0o644,
        source=str(source),
        size=each.size,
        sha256=each.digest.removeprefix("sha256:"),
    )


def fill_folder(cache: Cache, index: Index, folder: Path, *, name: str) -> None:
    """Write a layout into a folder that is empty; each blob is a copy of the cache's, compared with
    its digest.
    """
    (folder / "blobs/sha256").mkdir(parents=True)
    for each in list_entries(cache, index, name):
        if each.data is not None:
            (folder / each.path).write_bytes(each.data)
        else:
            copy_blob(each, folder / each.path)


def copy_blob(blob: Entry, target: Path) -> None:
    """Copy a blob of the cache; UserError where the copy is not what its digest says."""
    copy_file(blob.source, target)
    with open(target, "rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != blob.sha256:
            raise UserError(
                f"blob {blob.sha256[:12]}… is damaged",
                blob.source,
                "delete that file and build again",
                kind=DAMAGED,
            )


def write_layout(cache: Cache, index: Index, folder: Path, *, name: str) -> None:
    """Write the layout of an image at `folder`, or in one tar where the path ends in .tar; a layout
    of ours that is there is replaced.

    Raises UserError, before anything is touched, where something else is there.
    """
    with environment_assembly.locked(folder) as place:
        require_replaceable(place)
        with environment_assembly.exchanged(place) as new:
            if place.suffix == ".tar":
                with open(new, "wb") as out:
                    tar_file.write_tar(list_entries(cache, index, name), tar_file.PlainSink(out))
            else:
                new.mkdir()
                fill_folder(cache, index, new, name=name)


def is_current(cache: Cache, index: Index, place: Path, name: str) -> bool:
    """Is the layout at `place` this image under this name, every file there with its size? (In a
    tar only the head is looked at.)
    """
    wanted = list_entries(cache, index, name)
    try:
        if place.suffix == ".tar":
            with open(place, "rb") as stream:
                head = b"".join(
                    tar_file.encode_header(each)
                    + (each.data or b"")
                    + bytes(-each.size % tar_file.BLOCK_SIZE)
                    for each in wanted[:2]
                )
                whole = (
                    sum(
                        len(tar_file.encode_header(each))
                        + each.size
                        + -each.size % tar_file.BLOCK_SIZE
                        for each in wanted
                    )
                    + 2 * tar_file.BLOCK_SIZE
                )
                return place.stat().st_size == whole and stream.read(len(head)) == head
        return all(
            (place / each.path).read_bytes() == each.data
            if each.data is not None
            else (place / each.path).stat().st_size == each.size
            for each in wanted
        )
    except OSError:
        return False


def require_replaceable(place: Path) -> None:
    """UserError where `place` is neither free nor a layout (or a tar of one) that `write` made."""
    if place.suffix == ".tar":
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise UserError("is not a file", str(place), _CHOOSE_ANOTHER_PLACE)
        if place.exists() and place.stat().st_size and not _is_rosetta_tar(place):
            raise UserError(
                "is a file that is no image layout of rosetta's",
                str(place),
                _CHOOSE_ANOTHER_PLACE,
                kind=EXISTS,
            )
        return
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UserError("is not a folder", str(place), _CHOOSE_ANOTHER_PLACE, kind=EXISTS)
    if not place.exists() or not any(place.iterdir()):
        return
    try:
        ours = _ROSETTA_ANNOTATION in json.loads((place / "index.json").read_bytes())["annotations"]
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours or not {each.name for each in place.iterdir()} <= {
        "oci-layout",
        "index.json",
        "blobs",
    }:
        raise UserError(
            "holds files that are not an image layout of rosetta's",
            str(place),
            _CHOOSE_ANOTHER_PLACE,
            kind=EXISTS,
        )


def _is_rosetta_tar(place: Path) -> bool:
    with open(place, "rb") as stream:
        head = stream.read(8 * tar_file.BLOCK_SIZE)
    return head[:11] == b"oci-layout\0" and _ROSETTA_ANNOTATION.encode() in head


def write_archive(
    cache: Cache, image: Image, name: str, out: IO[bytes], leave_out: Collection[str] = ()
) -> None:
    """One platform's image as a tar for `docker load` and `podman load`: an OCI layout and the
    older form (manifest.json) at once.

    `name` is the image's name and tag. `leave_out` are digests of layers that the engine already
    has.
    """
    described = {
        **oci_documents.make_descriptor(oci_documents.MANIFEST, image.manifest),
        "platform": oci_documents.make_platform(image.architecture),
    }
    names = {
        "io.containerd.image.name": qualify_name(name),
        _NAME_ANNOTATION: name.rpartition(":")[2],
    }
    older = [
        {
            "Config": _blob_name(image.config_digest),
            "RepoTags": [name],
            "Layers": [_blob_name(each.digest) for each in image.layers],
        }
    ]
    found = {
        _blob_name(each.digest): _blob_entry(cache, each)
        for each in image.layers
        if each.digest not in leave_out
    }
    found |= {
        _blob_name(digest): make_file(_blob_name(digest), data)
        for digest, data in ((image.digest, image.manifest), (image.config_digest, image.config))
    }
    parts = [
        Entry("blobs", "dir", 0o755),
        Entry("blobs/sha256", "dir", 0o755),
        *(found[path] for path in sorted(found)),
    ]
    first = [
        make_file("oci-layout", _LAYOUT_MARKER),
        make_file("index.json", _encode_top_index(described, names)),
        make_file("manifest.json", json.dumps(older, sort_keys=True)),
    ]
    tar_file.write_tar([*first, *parts], tar_file.PlainSink(out))


def qualify_name(name: str) -> str:
    """Return an image's name with the registry that engines mean where it names none."""
    host, slash, _ = name.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def read_layout(folder: Path, *, blobs: bool = True) -> Layout:
    """Read a layout, ours or another's, of one image; with `blobs` its layers' digests are checked
    too.

    Raises UserError for anything missing, cut off or changed.
    """
    top = _parse_object(folder, "index.json", _read_file(folder, "index.json"))
    described = _require_list(folder, top, "manifests")
    if len(described) == 1 and described[0].get("mediaType") in _INDEX_TYPES:
        document = _read_document(folder, described[0])
        inner = _require_list(folder, _parse_object(folder, "the index", document), "manifests")
    else:
        document, inner = _read_file(folder, "index.json"), described
    images = tuple(
        _read_image(folder, each, blobs=blobs)
        for each in inner
        if each.get("mediaType") in _MANIFEST_TYPES and _is_image(each)
    )
    if not images:
        raise UserError(
            "the image layout holds no image", str(folder), "make it again", kind=MISSING
        )
    noted = described[0].get("annotations") or {}
    return Layout(
        folder, str(noted.get(_NAME_ANNOTATION, "")), oci_documents.Index(images, document)
    )


def blob_path(folder: Path, one: layer.Layer) -> Path:
    """Where a layout has the blob of a layer."""
    return folder / _blob_name(one.digest)


def _is_image(described: dict[str, Any]) -> bool:
    """Not an attestation that an engine put beside its image."""
    return (described.get("platform") or {}).get("os") != "unknown"


def _read_image(folder: Path, described: dict[str, Any], *, blobs: bool) -> Image:
    manifest = _read_document(folder, described)
    document = _parse_object(folder, "a manifest", manifest)
    config = _read_document(folder, document.get("config"))
    settings = _parse_object(folder, "a config", config)
    listed = _require_list(folder, document, "layers")
    try:
        diff_ids = [str(each) for each in settings["rootfs"]["diff_ids"]]
        architecture = str(settings["architecture"])
        history = [
            str(each.get("created_by", ""))
            for each in settings.get("history") or []
            if not each.get("empty_layer")
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "the config of the image is not one", str(folder), "make it again"
        ) from error
    if len(diff_ids) != len(listed):
        raise UserError(
            f"the image has {len(listed)} layers, and its config {len(diff_ids)}",
            str(folder),
            "make it again",
        )
    names = (
        [each.removeprefix("rosetta: ") for each in history]
        if len(history) == len(listed)
        else [""] * len(listed)
    )
    layers = []
    for name, diff_id, each in zip(names, diff_ids, listed, strict=True):
        digest, size = _parse_descriptor(folder, each)
        if blobs:
            _verify_blob(folder, digest, size)
        layers.append(
            layer.Layer(name, diff_id, digest, size, 0, str(each.get("mediaType", "")), "")
        )
    return oci_documents.Image(architecture, tuple(layers), config, manifest)


def _read_file(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UserError(
            f"{name} of the image layout cannot be read ({error.strerror})",
            str(folder),
            "copy the layout again, whole",
            kind=MISSING,
            value=name,
        ) from error


def _parse_object(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(
            f"{name} of the image layout is not JSON",
            str(folder),
            "copy the layout again, whole",
            kind=INVALID,
            value=name,
        )
    return value


def _require_list(folder: Path, document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UserError(
            f"the image layout has no list of {key}", str(folder), "copy the layout again, whole"
        )
    return value


def _parse_descriptor(folder: Path, described: Any) -> tuple[str, int]:
    """Digest and size out of a descriptor."""
    digest, size = (
        (described.get("digest"), described.get("size"))
        if isinstance(described, dict)
        else (None, None)
    )
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or not isinstance(size, int):
        raise UserError(
            "the image layout names something without sha256 and size",
            str(folder),
            "copy the layout again, whole",
        )
    return digest, size


def _read_document(folder: Path, described: Any) -> bytes:
    digest, size = _parse_descriptor(folder, described)
    data = _read_file(folder, _blob_name(digest))
    if len(data) != size or oci_documents.compute_digest(data) != digest:
        raise UserError(
            f"blob {digest[7:19]}… is not what its digest says",
            str(folder),
            "copy the layout again, whole",
            kind=DAMAGED,
            value=digest,
        )
    return data


def _verify_blob(folder: Path, digest: str, size: int) -> None:
    """Check a blob that may be large."""
    try:
        with open(folder / _blob_name(digest), "rb") as stream:
            state = os.fstat(stream.fileno())
            came = (
                hashlib.file_digest(stream, "sha256").hexdigest() if state.st_size == size else ""
            )
    except OSError as error:
        raise UserError(
            f"blob {digest[7:19]}… cannot be read ({error.strerror})",
            str(folder),
            "copy the layout again, whole",
            kind=MISSING,
            value=digest,
        ) from error
    if came != digest[7:]:
        raise UserError(
            f"blob {digest[7:19]}… is not what its digest says",
            str(folder),
            "copy the layout again, whole",
            kind=DAMAGED,
            value=digest,
        )
