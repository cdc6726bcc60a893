"""Reconstruct the manifest that an environment or an image was built from.

The environment or image has its `lock.json` and its patches. The rest comes from the manifest and
the locks of this checkout.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import machine_architecture, manifest
from builder.core.manifest import source_folder_name
from builder.images import inspection
from builder.images.oci import blob_compression, layer, layout
from builder.images.registry import download
from builder.release.bisect import repository
from builder.release.bisect.build_contents import rules_of_line
from builder.upstream import git_objects, patch_path_rules, patch_series
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import IO

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.inspection import InspectedImage
    from builder.images.oci.oci_documents import Image

    Files = Mapping[str, tuple[bytes, bool]]  # path -> (content, whether it is executable)
    ReadFiles = Callable[[Collection[str]], Files]

_HOME = "opt/rosetta"
_NOT_BUILT_HERE = "give an environment or an image that this builder built"
_OTHER_CHECKOUT = "give the --manifest of a checkout that has it"


@dataclass(frozen=True)
class _Record:
    """What a `lock.json` says.

    Attributes:
        document: The whole `lock.json`.
        sources: The state of each source, by its name.
        lock_name: The file name of the lock.
        lock_sha256: The hash of the lock.
        patches: The path in the image and the hash of each patch, by source and patch.
        overlay: The path in the image and the blob of each overlay file, by source and path.
    """

    document: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    lock_name: str
    lock_sha256: str
    patches: dict[tuple[str, str], tuple[str, str]]
    overlay: dict[tuple[str, str], tuple[str, str]]


def write_manifest_of_built(
    kind: str, place: str, context: Context, folder: Path
) -> dict[str, Any]:
    """Write the manifest, patches, overlays and locks of an environment or image to a new folder.

    `lock.json` does not have a wheel's hash, the tracked branch and the rules for packages: these
    come from the manifest of this checkout. The lock is looked for by its hash, in this checkout
    and in its history.

    Returns:
        The `lock.json`.

    Raises:
        UserError: something is missing, or does not have the hash that `lock.json` records.
    """
    folder.mkdir(parents=True)
    where = f"{kind}:{place}"
    with _open_files(kind, place, folder / "image") as read_files:
        try:
            record = _parse_record(read_files([f"{_HOME}/lock.json"])[f"{_HOME}/lock.json"][0])
            _refuse_projects(record, where)
            document = _manifest_document(record, manifest.load(context.manifest_path), where)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                "its lock.json is not valid", where, _NOT_BUILT_HERE, kind=DAMAGED
            ) from error
        recorded = [*record.patches.values(), *record.overlay.values()]
        files = read_files([path for path, _ in recorded])
    _write_patches(record, files, folder, where)
    _write_overlays(record, files, folder, where)
    lock = _find_lock(context, record.lock_name, record.lock_sha256, where)
    write_atomic(folder / "locks" / record.lock_name, lock)
    build_tools_lock = context.manifest_path.parent / "locks/build.txt"
    content = build_tools_lock.read_bytes() if build_tools_lock.is_file() else b""
    write_atomic(folder / "locks/build.txt", content)
    write_atomic(folder / "manifest.yaml", json.dumps(document, indent=1) + "\n")
    return record.document


def _refuse_projects(record: _Record, where: str) -> None:
    """Raise UserError for an environment or image with projects: bisect builds without them."""
    if projects := record.document.get("projects"):
        raise UserError(
            f"has the projects {', '.join(projects)}, which bisect does not build",
            where,
            "give an environment or an image without projects",
            kind=UNSUPPORTED,
        )


def _parse_record(lock_json: bytes) -> _Record:
    """Parse a `lock.json`, and check every name that becomes part of a path.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it does not have the expected form.
    """
    document: dict[str, Any] = json.loads(lock_json)
    sources: dict[str, dict[str, Any]] = dict(document["sources"])
    patches, overlay = {}, {}
    for name, state in sources.items():
        for patch in state["patches"]:
            path = f"{_HOME}/sources/{name}/{patch['name']}.patch"
            patches[name, patch["name"]] = path, patch["sha256"]
        for file, blob in state["overlay"]:
            overlay[name, file] = f"opt/{source_folder_name(state['url'])}/{file}", blob
    lock_name = str(document["requirements"]["file"])
    for name in (*sources, lock_name):
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
            raise ValueError(name)
    for _, patch_name in patches:
        if patch_series.find_name_problem(patch_name):
            raise ValueError(patch_name)
    for _, file in overlay:
        if patch_path_rules.find_path_problem(file):
            raise ValueError(file)
    lock_sha256 = str(document["requirements"]["sha256"])
    return _Record(document, sources, lock_name, lock_sha256, patches, overlay)


def _write_patches(record: _Record, files: Files, folder: Path, where: str) -> None:
    for (source, patch), (path, sha256) in record.patches.items():
        content, _ = files[path]
        _check_hash(hashlib.sha256(content).hexdigest(), sha256, path, where)
        write_atomic(folder / "patches" / source / f"{patch}.patch", content)
    for source, state in record.sources.items():
        series = "".join(f"{patch['name']}\n" for patch in state["patches"])
        write_atomic(folder / "patches" / source / "series", series)


def _write_overlays(record: _Record, files: Files, folder: Path, where: str) -> None:
    for (source, relative), (path, blob) in record.overlay.items():
        content, is_executable = files[path]
        _check_hash(git_objects.hash_object("blob", content), blob, path, where)
        mode = 0o755 if is_executable else 0o644
        write_atomic(folder / "overlay" / source / relative, content, mode)
    for source, state in record.sources.items():
        # What each file replaces is not recorded. A bisect does not need it.
        paths = sorted(path for path, _ in state["overlay"])
        if paths:
            replaces = "".join(f"{path} new\n" for path in paths)
            write_atomic(folder / "overlay" / source / "REPLACES", replaces)


def _check_hash(actual: str, recorded: str, path: str, where: str) -> None:
    if actual != recorded:
        raise UserError(
            f"{path} does not have the hash that its lock.json records",
            where,
            "give one that was not changed after it was built",
            kind=DAMAGED,
            value=path,
        )


def _manifest_document(record: _Record, checkout: Manifest, where: str) -> dict[str, Any]:
    """Return the manifest of an environment or image, as JSON.

    Args:
        record: Its `lock.json`.
        checkout: The manifest of this checkout, for what no `lock.json` records.
        where: The environment or image, for errors.
    """
    line = str(record.document["line"])
    if line not in checkout.lines:
        raise UserError(
            f"was built for the line {line}, which the manifest does not have",
            where,
            _OTHER_CHECKOUT,
        )
    checkout_document = checkout.model_dump(mode="json", by_alias=True, exclude_none=True)
    sources = {
        name: _source_entry(name, state, checkout_document["sources"].get(name, {}), where)
        for name, state in record.sources.items()
    }
    return {
        "version": 1,
        "sources": sources,
        "lines": {
            line: {
                "python": checkout.lines[line].python,
                "pythons": list(checkout.lines[line].pythons),
                "common": "locks/common.in",
            }
        },
        "distributions": {
            record.document["distribution"]: {
                "line": line,
                "sources": list(sources),
                "accelerators": [record.document["accelerator"]],
                "architectures": ["amd64", "arm64"],
            }
        },
        **rules_of_line(checkout_document, line),
    }


def _source_entry(
    name: str, state: Mapping[str, Any], checkout_entry: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the manifest's entry of a source.

    Args:
        name: The name of the source.
        state: What `lock.json` says about the source.
        checkout_entry: The source's entry in the manifest of this checkout, empty if it has none.
        where: The environment or image, for errors.
    """
    address = str(state["url"])
    if "==" not in address:
        track = checkout_entry.get("track", "main")
        entry = {"git": address, "track": track, "commit": state["commit"]}
    elif checkout_entry.get("wheel") == address:
        entry = {"wheel": address, "sha256": checkout_entry["sha256"]}
    else:
        raise UserError(
            f"was built from the wheel {address}, whose hash the manifest does not have",
            where,
            _OTHER_CHECKOUT,
        )
    entry |= {"absent": list(state["absent"]), "patches": f"patches/{name}"}
    return {**entry, "overlay": f"overlay/{name}"} if state["overlay"] else entry


def _find_lock(context: Context, name: str, sha256: str, where: str) -> bytes:
    """Return the lock with a hash, from this checkout or its history."""
    for content in _lock_versions(context.manifest_path.parent, name):
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
    raise UserError(
        f"its locks/{name} ({sha256[:12]}) is neither in this checkout nor in its history",
        where,
        _OTHER_CHECKOUT,
        kind=MISSING,
        value=sha256,
    )


def _lock_versions(root: Path, name: str) -> Iterator[bytes]:
    file = root / "locks" / name
    if file.is_file():
        yield file.read_bytes()
    checkout = repository.find_repository(root)
    if checkout:
        yield from checkout.file_versions(f"locks/{name}")


@contextlib.contextmanager
def _open_files(kind: str, place: str, scratch: Path) -> Iterator[ReadFiles]:
    """Yield a function that reads files of an environment or image by their paths.

    The function raises UserError if a file is missing.
    """
    if kind == "env":
        yield lambda paths: {path: _read_file(Path(place), path) for path in paths}
        return
    scratch.mkdir()
    with _open_image(kind, place, scratch) as opened:
        architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
        matching = [image for image in opened.images if image.architecture == architecture]
        image = (matching or opened.images)[0]
        yield lambda paths: _read_from_layers(opened, image, paths, f"{kind}:{place}")


def _read_file(root: Path, path: str) -> tuple[bytes, bool]:
    try:
        return (root / path).read_bytes(), bool((root / path).stat().st_mode & 0o100)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(root / path), _NOT_BUILT_HERE
        ) from error


def _read_from_layers(
    opened: InspectedImage, image: Image, paths: Collection[str], where: str
) -> Files:
    """Read files of an image, each from the highest layer that has it.

    Layers below the last one that is needed are not opened.
    """
    files: dict[str, tuple[bytes, bool]] = {}
    for image_layer in reversed(image.layers):
        missing = set(paths) - files.keys()
        if not missing:
            return files
        with (
            opened.open(image, image_layer) as packed,
            blob_compression.decompress_stream(packed) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            for member in archive:
                if member.name in missing and (content := archive.extractfile(member)):
                    files[member.name] = content.read(), bool(member.mode & 0o100)
    if missing := set(paths) - files.keys():
        raise UserError(f"has no {min(missing)}", where, _NOT_BUILT_HERE)
    return files


@contextlib.contextmanager
def _open_image(kind: str, place: str, scratch: Path) -> Iterator[InspectedImage]:
    """Yield an image. From a registry, only the layers that are read are downloaded."""
    if kind != "registry":
        name = place if kind == "image" else f"{kind}:{place}"
        with inspection.open_image(name, "", scratch) as opened:
            yield opened
        return
    folder = scratch / "pulled"
    download.pull_image(place, folder, layers=False)
    contents = layout.read_layout(folder, blobs=False)

    def open_layer(_: Image, image_layer: layer.Layer) -> IO[bytes]:
        blob = layout.blob_path(folder, image_layer)
        if not blob.is_file():
            download.download_blob(place, image_layer.digest, image_layer.size, blob)
        return open(blob, "rb")

    yield inspection.InspectedImage(contents.index.images, contents.index.digest, open_layer)
